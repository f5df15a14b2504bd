// Calls the client in JavaScript as the lines of its input say: driver.mjs FOLDER_OF_THE_CLIENT; see driver.py.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const { Session, RefusedError } = await import(pathToFileURL(`${process.argv[2]}/crossborder.js`));
let session = null;
let jumps = 0;
Date.now = () => (jumps += 3_600_000); // The wall clock jumps by an hour whenever one looks at it; no client may mind.

// The value in which {"bytes": TEXT} stands for bytes, and {"float": TEXT} for NaN or infinity.
function restore(value) {
  if (Array.isArray(value)) return value.map(restore);
  if (typeof value !== "object" || value === null) return value;
  if (Object.keys(value).join() === "float") return Number(value.float);
  if (Object.keys(value).join() === "bytes") return Uint8Array.from(Buffer.from(value.bytes, "base64"));
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, restore(part)]));
}

async function call({ call: name, ...given }) {
  const { address, attribute, observation, observations, reward, terminated, truncated, ...more } = restore(given);
  if (name === "get") return session[attribute];
  if (name === "open") {
    session = await Session.open(address, more);
    return null;
  }
  if (name === "act") return session.act(observation, reward, terminated, truncated, more);
  if (name === "act_lanes") return session.actLanes(observations, { terminated, truncated, ...more });
  return session.close();
}

function nameOf(error) {
  if (error instanceof RefusedError) return error.code;
  return error instanceof TypeError ? "bad_argument" : "out_of_reach";
}

for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = { result: (await call(JSON.parse(line))) ?? null };
  } catch (error) {
    answer = { error: nameOf(error), message: error.message };
  }
  console.log(JSON.stringify(answer));
}
process.exit();
