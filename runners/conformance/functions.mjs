// The functions every runner is checked with (`headway runner check`).
export const echo = (value) => value;
export const add = (a, b) => a + b;
export const nothing = () => undefined;
export const hello = () => console.log("hello from the function");
export const steps = () => globalThis.headway.progress(1, 2, "half way");
export const fail = (why) => {
  throw new TypeError(why);
};
export const crash = () => process.kill(process.pid, "SIGKILL");
