/** What a log line may hold, and what randomness is. */
import { expect, it } from 'vitest';
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

it('random bytes are as many as were asked for, and no portion comes twice', () => {
  for (const length of [0, 1, 9, 12, 16, 17, 32, 5_000]) expect(systemRandom.bytes(length)).toHaveLength(length);
  const portions = Array.from({ length: 2_000 }, () => systemRandom.bytes(9));
  const kept = portions.map((bytes) => bytes.toString('hex'));
  expect(new Set(kept).size).toBe(portions.length);
  // Nobody else writes into what was given out.
  systemRandom.bytes(16).fill(0);
  expect(portions.map((bytes) => bytes.toString('hex'))).toEqual(kept);
});
