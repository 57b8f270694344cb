/** Owns the promises of sample names and texts: within the API's limits, varied, the same for the same seed. */
import { describe, expect, it } from 'vitest';
import { createSeeded } from '../../src/sample/seeded.ts';
import { personaOf, writePost, writeQuote, writeReply } from '../../src/sample/text.ts';
import { parseUserId } from '../../src/timeline/ids.ts';
import { LIMITS } from '../../src/timeline/limits.ts';

describe('personas', () => {
  const random = createSeeded(3);
  const personas = Array.from({ length: 5_000 }, (_, index) => personaOf(index, random));

  it('have IDs that the API takes, each different', () => {
    expect(personas.filter((persona) => parseUserId(persona.id) === undefined)).toEqual([]);
    expect(new Set(personas.map((persona) => persona.id)).size).toBe(personas.length);
  });

  it('have names and descriptions within the limits of a profile', () => {
    for (const persona of personas) {
      expect([...persona.displayName].length).toBeLessThanOrEqual(LIMITS.displayNameCodePointsMax);
      expect([...persona.bio].length).toBeLessThanOrEqual(LIMITS.bioCodePointsMax);
    }
  });
});

describe('texts', () => {
  function write(seed: number, count: number): readonly string[] {
    const random = createSeeded(seed);
    return Array.from({ length: count }, (_, index) => writePost(personaOf(index % 50, random), random));
  }

  it('have every slot filled and begin like sentences', () => {
    for (const text of write(1, 3_000)) {
      expect(text).not.toMatch(/[{}]|undefined/);
      expect(text).toMatch(/^[^a-z\s]/);
      expect(text.length).toBeGreaterThan(15);
    }
  });

  it('seldom repeat', () => {
    const texts = write(2, 200);
    expect(new Set(texts).size).toBeGreaterThan(150);
  });

  it('are the same for the same seed', () => {
    expect(write(9, 20)).toEqual(write(9, 20));
  });

  it('have replies and comments beside them', () => {
    const random = createSeeded(4);
    expect(writeReply(random)).toMatch(/\w/);
    expect(writeQuote(random)).toMatch(/\w/);
  });
});
