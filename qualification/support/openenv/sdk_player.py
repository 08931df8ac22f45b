"""Upstream's stock SDK client, driven line by line: one JSON command in, one JSON answer out.

Runs in the OpenEnv stack and holds nothing of this product. What the client raises is an answer too.
"""

import asyncio
import json
import sys

from openenv.core.generic_client import GenericEnvClient


async def main(url: str) -> None:
    client = GenericEnvClient(base_url=url, message_timeout_s=20)
    # In a thread, so that the client sees meanwhile what becomes of its socket.
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        try:
            if command["do"] == "reset":
                result = await client.reset(**command["with"])
            elif command["do"] == "step":
                result = await client.step(command["with"])
            elif command["do"] == "state":
                print(json.dumps({"state": await client.state()}), flush=True)
                continue
            else:
                await client.close()
                print("{}", flush=True)
                continue
            answer = {"observation": result.observation, "reward": result.reward, "done": result.done}
        except Exception as error:
            answer = {"raised": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), flush=True)


asyncio.run(main(sys.argv[1]))
