/**
 * The worker's end of boot({worker: true}): runs the interpreter of boot.mjs and answers the page.
 *
 *   page → worker   {id, message: {boot} | {call, args} | {stop}}
 *   worker → page   {id, message: {value} | {error}},  {message: {event, value}},  {message: {progress}}
 */

import { pack, startInterpreter, unpack } from "./boot.mjs";

let interpreter;

function post(id, content) {
  const { transfer, ...packed } = pack(content);
  globalThis.postMessage({ id, ...packed }, transfer);
}

async function handle(message) {
  if (message.boot) {
    const progress = (value) => post(undefined, { progress: value });
    const emit = (event, value) => post(undefined, { event, value });
    interpreter = await startInterpreter(message.boot, progress, emit);
    return null;
  }
  if (message.stop) return interpreter?.stop();
  return interpreter.call(message.call, message.args);
}

globalThis.onmessage = async ({ data }) => {
  try {
    post(data.id, { value: await handle(unpack(data)) });
  } catch ({ name, message, traceback, stack }) {
    post(data.id, { error: { name, message, traceback, stack } });
  }
};
