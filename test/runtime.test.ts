/** What a log line may hold. */
import { expect, it } from 'vitest';
import { createLog } from '../src/runtime.ts';

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
