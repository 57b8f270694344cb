/** What a log line may hold, and what random bytes are. */
import { describe, expect, it } from 'vitest';
import { createLog, systemRandom } from '../src/runtime.ts';

it('an error of Postgres is logged without the rows and parameters that it quotes', () => {
  const lines: string[] = [];
  const log = createLog('info', { write: (line) => void lines.push(line) });
  const error = Object.assign(new Error('a rule was broken'), {
    code: '23514',
    constraint: 'posts_check',
    detail: 'Failing row contains (ada, dear diary).',
    where: "unnamed portal with parameters: $1 = 'dear diary'",
  });
  log.error({ err: error }, 'call failed');
  expect(JSON.parse(lines[0] ?? '')).toMatchObject({
    err: { type: 'Error', message: 'a rule was broken', code: '23514', constraint: 'posts_check' },
  });
  expect(lines.join()).not.toContain('diary');
});

describe('random bytes', () => {
  it('are as many as asked for, and never handed out again', () => {
    const seen = new Set<string>();
    const kept: { readonly bytes: Buffer; readonly text: string }[] = [];
    for (let turn = 0; turn < 2_000; turn += 1) {
      const bytes = systemRandom.bytes(9 + (turn % 3) * 8);
      expect(bytes).toHaveLength(9 + (turn % 3) * 8);
      const text = bytes.toString('hex');
      expect(seen.has(text.slice(0, 18))).toBe(false);
      seen.add(text.slice(0, 18));
      kept.push({ bytes, text });
    }
    // What comes later changes nothing of what was handed out.
    for (const { bytes, text } of kept) expect(bytes.toString('hex')).toBe(text);
    expect(systemRandom.bytes(10_000)).toHaveLength(10_000);
    expect(systemRandom.bytes(0)).toHaveLength(0);
  });
});
