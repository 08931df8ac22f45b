def write(made, folder):
    pass
