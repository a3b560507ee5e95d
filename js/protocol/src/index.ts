/** The protocol between kernel and browser: types, the parser at the border, history. */

export { History } from "./history";
export { POINTS, parseMessage, parseSnapshot } from "./parse";
export { ParseError } from "./read";
export * from "./runs";
export * from "./types";
