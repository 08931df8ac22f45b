"""Studies that anyone can repeat: planted trainer bugs, mutations of what judges."""
