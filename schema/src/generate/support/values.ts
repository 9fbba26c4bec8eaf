/** A type's way to JSON, and from what a transport gives. `undefined` is what a field that is left out is. */
interface Codec<T> {
  write(value: T): string | undefined;
  read(from: unknown): T;
}

function textOf(from: unknown): string {
  if (typeof from === "string") return from;
  if (from instanceof Uint8Array) return decoder.decode(from);
  throw new Error(`${nameOf(from)} where a text is expected`);
}

function nameOf(from: unknown): string {
  if (from === null || from === undefined) return "nothing";
  if (from instanceof Uint8Array) return "bytes";
  return Array.isArray(from) ? "a list" : `a value of type ${typeof from}`;
}

function integerOf(from: unknown): bigint {
  if (typeof from === "bigint") return from;
  if (typeof from === "number" && Number.isSafeInteger(from)) return BigInt(from);
  const digits = typeof from === "string" || from instanceof Uint8Array ? textOf(from) : "";
  if (!/^-?\d+$/.test(digits)) throw new Error(`${nameOf(from)} where an integer is expected`);
  return BigInt(digits);
}

function inexact(integer: number | bigint): string {
  return `${integer} is beyond 2^53, where numbers are not exact: generate the client with --bigint`;
}

/** What JSON says of any value: the server judges it. */
function written(value: unknown): string | undefined {
  return JSON.stringify(value, (_, part) => (typeof part === "bigint" ? Number(part) : part));
}

const codecs = {
  unit: { write: () => "null", read: () => null } as Codec<null>,
  bool: {
    write: written,
    read(from) {
      if (typeof from !== "boolean") throw new Error(`${nameOf(from)} where a bool is expected`);
      return from;
    },
  } as Codec<boolean>,
  /** Integers that a number holds: of 32 bits at most, or not beyond 2^53. */
  integer: {
    write(value) {
      if (typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value)) {
        throw failure("invalid", inexact(value));
      }
      return written(value);
    },
    read(from) {
      const exact = integerOf(from);
      if (!Number.isSafeInteger(Number(exact))) {
        throw new Error(inexact(exact));
      }
      return Number(exact);
    },
  } as Codec<number>,
  bigint: {
    write: (value) => (typeof value === "bigint" ? String(value) : written(value)),
    read: integerOf,
  } as Codec<bigint>,
  float: {
    write: written,
    read(from) {
      // JSON has no number that is none, such as infinity.
      if (from === null) return NaN;
      if (typeof from === "number") return from;
      return Number(integerOf(from));
    },
  } as Codec<number>,
  text: { write: written, read: textOf } as Codec<string>,
  /** In base64. */
  bytes: {
    write: written,
    read(from) {
      if (!(from instanceof Uint8Array)) return textOf(from);
      let text = "";
      for (const byte of from) text += String.fromCharCode(byte);
      return btoa(text);
    },
  } as Codec<string>,
};

/** One of a few names. */
function names<T extends string>(): Codec<T> {
  return { write: written, read: (from) => textOf(from) as T };
}

function optional<T>(inner: Codec<T>): Codec<T | null> {
  return {
    write: (value) => (value === null || value === undefined ? "null" : inner.write(value)),
    read: (from) => (from === null || from === undefined ? null : inner.read(from)),
  };
}

function list<T>(inner: Codec<T>): Codec<T[]> {
  return {
    write: (values) =>
      Array.isArray(values) ? `[${values.map((value) => inner.write(value) ?? "null").join(",")}]` : written(values),
    read(from) {
      if (!Array.isArray(from)) throw new Error(`${nameOf(from)} where a list is expected`);
      return from.map((value, at) => within(`[${at}]`, () => inner.read(value)));
    },
  };
}

/** Values without names, as many as there are. */
function tuple(...inner: Codec<any>[]): Codec<any> {
  return {
    write: (values) =>
      Array.isArray(values) && values.length === inner.length
        ? `[${inner.map((codec, at) => codec.write(values[at]) ?? "null").join(",")}]`
        : written(values),
    read(from) {
      if (!Array.isArray(from) || from.length !== inner.length) {
        throw new Error(`${nameOf(from)} where a list of ${inner.length} is expected`);
      }
      return inner.map((codec, at) => within(`[${at}]`, () => codec.read(from[at])));
    },
  };
}

function record<T>(fields: { [K in keyof T]-?: Codec<T[K]> }): Codec<T> {
  const all = Object.entries(fields) as [string, Codec<unknown>][];
  return {
    write(value) {
      if (typeof value !== "object" || value === null || Array.isArray(value)) return written(value);
      const given = value as Record<string, unknown>;
      // What every object has, such as `toString`, was not given.
      const ownOf = (name: string) => (name in Object.prototype && !Object.hasOwn(value, name) ? undefined : given[name]);
      const parts = all.map(([name, codec]) => [name, codec.write(ownOf(name))]);
      return `{${parts.filter(([, text]) => text !== undefined).map(([name, text]) => `"${name}":${text}`).join(",")}}`;
    },
    read(from) {
      const given = entriesOf(from);
      const entries = all.map(([name, codec]) => [name, within(name, () => codec.read(given.get(name)))]);
      return Object.fromEntries(entries) as T;
    },
  };
}

/** A name, or an object of one name with what is in it; `null`: nothing is. */
function union<T>(variants: Record<string, Codec<any> | null>): Codec<T> {
  return {
    write(value) {
      const [[name, inside] = ["", undefined], more] = typeof value === "object" && value ? Object.entries(value) : [];
      const codec = Object.hasOwn(variants, name) ? variants[name] : undefined;
      return codec && !more ? `{"${name}":${codec.write(inside) ?? "null"}}` : written(value);
    },
    read(from) {
      const isName = typeof from === "string" || from instanceof Uint8Array;
      const [[name, inside] = [textOf(from), null]] = isName ? [] : entriesOf(from);
      const codec = Object.hasOwn(variants, name) ? variants[name] : undefined;
      if (codec === undefined) throw new Error(`there is no variant ${name}`);
      if ((codec === null) !== isName) throw new Error(`the variant ${name} is of another type`);
      return (codec === null ? name : { [name]: within(name, () => codec.read(inside)) }) as T;
    },
  };
}

function entriesOf(from: unknown): Map<string, unknown> {
  if (from instanceof Map) return from;
  if (typeof from !== "object" || from === null || Array.isArray(from)) {
    throw new Error(`${nameOf(from)} where an object is expected`);
  }
  return new Map(Object.entries(from));
}

/** Says where in a value an error was met. */
function within<T>(part: string, read: () => T): T {
  try {
    return read();
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new Error(`${part}: ${why}`);
  }
}
