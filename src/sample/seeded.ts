/**
 * Owns random numbers that are the same for the same seed on every machine, so that a sample and a benchmark can be repeated.
 * Invariant: nothing here reads a clock or the machine's own randomness. Not for secrets.
 */

export interface Seeded {
  /** Evenly distributed in [0, 1), in steps of 2^-32. */
  fraction(): number;
  /** An integer from 0 to `below` − 1; `below` is at least 1. */
  below(below: number): number;
  /** True with the given probability. */
  chance(probability: number): boolean;
  pick<T>(from: readonly T[]): T;
  /** Normal distribution with mean 0 and deviation 1 (Box and Muller). */
  normal(): number;
}

/** sfc32 (Chris Doty-Humphrey, PractRand): 128 bits of state, some nanoseconds a number. */
export function createSeeded(seed: number): Seeded {
  let a = 0x9e37_79b9;
  let b = seed | 0;
  let c = Math.floor(seed / 2 ** 32) | 0;
  let counter = 1;

  function fraction(): number {
    const sum = (((a + b) | 0) + counter) | 0;
    counter = (counter + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = ((c << 21) | (c >>> 11)) + sum;
    return (sum >>> 0) / 2 ** 32;
  }

  function below(bound: number): number {
    return Math.floor(fraction() * bound);
  }

  // Neighbouring seeds begin with states that differ in a few bits: these rounds spread them.
  for (let round = 0; round < 16; round++) fraction();

  return {
    fraction,
    below,
    chance: (probability) => fraction() < probability,
    pick: (from) => {
      const picked = from[below(from.length)];
      if (picked === undefined) throw new RangeError('nothing to pick from');
      return picked;
    },
    normal: () => Math.sqrt(-2 * Math.log(1 - fraction())) * Math.cos(2 * Math.PI * fraction()),
  };
}

/** Puts the items in random order, in place (Fisher and Yates). */
export function shuffle(items: { readonly length: number; [index: number]: number }, random: Seeded): void {
  for (let last = items.length - 1; last > 0; last--) {
    const other = random.below(last + 1);
    const kept = items[last] ?? 0;
    items[last] = items[other] ?? 0;
    items[other] = kept;
  }
}
