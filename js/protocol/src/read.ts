/**
 * Readers of JSON values: each returns the value with its type, or throws ParseError with the path
 * of the field that is wrong. The type of a message is the return type of its reader.
 */

export class ParseError extends Error {
  override readonly name = "ParseError";
}

export type Reader<T> = (value: unknown, at: string) => T;

type Fields = Readonly<Record<string, unknown>>;

function fail(at: string, rule: string, value: unknown): never {
  const got = typeof value === "string" ? JSON.stringify(value.slice(0, 80)) : typeName(value);
  throw new ParseError(`${at} must be ${rule}, got ${got}`);
}

function typeName(value: unknown): string {
  if (value === null || typeof value === "number" || typeof value === "boolean") {
    return String(value);
  }
  return Array.isArray(value) ? "array" : typeof value;
}

export function fields(value: unknown, at: string): Fields {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    fail(at, "an object", value);
  }
  return value as Fields;
}

export const number: Reader<number> = (value, at) =>
  typeof value === "number" && Number.isFinite(value) ? value : fail(at, "a finite number", value);

export const atLeastZero: Reader<number> = (value, at) =>
  number(value, at) >= 0 ? number(value, at) : fail(at, "at least 0", value);

export const integer: Reader<number> = (value, at) =>
  Number.isSafeInteger(value) ? number(value, at) : fail(at, "an integer", value);

/** A number of things; above 2 ** 53 it is rounded, which a count can bear. */
export const count: Reader<number> = (value, at) => {
  const given = Number.isInteger(value) ? number(value, at) : fail(at, "an integer", value);
  return given >= 0 ? given : fail(at, "at least 0", value);
};

/** A share of 1; what rounding puts just outside is clamped. */
export const share: Reader<number> = (value, at) => {
  const given = number(value, at);
  return given > -0.01 && given < 1.01
    ? Math.min(1, Math.max(0, given))
    : fail(at, "in 0 to 1", value);
};

export const boolean: Reader<boolean> = (value, at) =>
  typeof value === "boolean" ? value : fail(at, "a boolean", value);

/** Text of at most `limit` characters, counted as Python counts them; longer text is cut. */
export function text(limit: number): Reader<string> {
  return (value, at) => {
    const given = typeof value === "string" ? value : fail(at, "a text", value);
    return given.length <= limit ? given : Array.from(given).slice(0, limit).join("");
  };
}

const LONGEST_LINK = 300;
const PAGE = /^https?:\/\/[a-z0-9_.:[\]-]+([/?#][!-~]*)?$/i;

/** The address of a web page; null for anything else that a click could open. */
export const pageLink: Reader<string | null> = (value, at) => {
  if (typeof value !== "string") {
    fail(at, "a text", value);
  }
  return value.length <= LONGEST_LINK && PAGE.test(value) ? value : null;
};

export function oneOf<const T extends string>(allowed: readonly T[]): Reader<T> {
  return (value, at) =>
    allowed.find((item) => item === value) ?? fail(at, `one of ${allowed.join(", ")}`, value);
}

export function orNull<T>(reader: Reader<T>): Reader<T | null> {
  return (value, at) => (value === null ? null : reader(value, at));
}

export function list<T>(reader: Reader<T>, limit: number): Reader<readonly T[]> {
  return (value, at) => {
    if (!Array.isArray(value)) {
      fail(at, "an array", value);
    }
    if (value.length > limit) {
      fail(at, `an array of at most ${limit}`, value.length);
    }
    return value.map((item: unknown, place) => reader(item, `${at}[${place}]`));
  };
}

/** An object whose fields are each read; unknown fields are left out. */
export function record<T extends object>(
  readers: {
    readonly [K in keyof T]: Reader<T[K]>;
  },
): Reader<Readonly<T>> {
  const names = Object.keys(readers) as (keyof T & string)[];
  return (value, at) => {
    const given = fields(value, at);
    const result: Partial<T> = {};
    for (const name of names) {
      result[name] = readers[name](given[name], `${at}.${name}`);
    }
    return result as T;
  };
}

/** A field that an older notebook or kernel does not have. */
export function withDefault<T>(reader: Reader<T>, missing: T): Reader<T> {
  return (value, at) => (value === undefined ? missing : reader(value, at));
}
