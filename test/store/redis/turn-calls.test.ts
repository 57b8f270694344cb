/** Owns what holds of asks that go out together: nobody is given what was asked for before they came, and nobody decides for others. */
import { describe, expect, it } from 'vitest';
import { createTurnCalls } from '../../../src/store/redis/turn-calls.ts';
import { eventually } from '../../harness/eventually.ts';
import { soon } from './cache-under-test.ts';

interface Ask {
  readonly name: string;
  readonly size: number;
}

/** Each call is answered when its turn comes in `answers`. */
function calls(answer: (asks: readonly Ask[]) => Promise<readonly string[]>) {
  const sent: (readonly Ask[])[] = [];
  const ask = createTurnCalls<Ask, string>({
    nameOf: ({ name }) => name,
    sizeOf: ({ size }) => size,
    sizeMax: 10,
    send(_signal, asks) {
      sent.push(asks);
      return answer(asks);
    },
  });
  return { ask, sent };
}

const of = (name: string, size = 1): Ask => ({ name, size });

describe('what is asked in one turn', () => {
  it('goes out in one call, and each gets their own answer', async () => {
    const { ask, sent } = calls(async (asks) => asks.map(({ size }) => `answer ${size}`));
    const answers = await Promise.all([1, 2, 3].map((size) => ask(soon(), of('a', size))));
    expect(answers).toEqual(['answer 1', 'answer 2', 'answer 3']);
    expect(sent).toHaveLength(1);
  });

  it('of different names, or beyond the bound of a call, goes out in several', async () => {
    const { ask, sent } = calls(async (asks) => asks.map(() => ''));
    await Promise.all([of('a', 6), of('b', 6), of('a', 4), of('a', 1), of('b', 20)].map((one) => ask(soon(), one)));
    expect(sent.map((asks) => asks.map(({ name, size }) => `${name}${size}`))).toEqual([
      ['a6', 'a4'],
      ['a1'],
      ['b6'],
      ['b20'],
    ]);
  });

  it('is never answered by what was sent before, although that is not answered yet', async () => {
    const first = Promise.withResolvers<readonly string[]>();
    let truth = 'past';
    const { ask, sent } = calls((asks) => {
      const answers = asks.map(() => truth);
      return sent.length === 1 ? first.promise.then(() => answers) : Promise.resolve(answers);
    });
    const early = ask(soon(), of('a'));
    await eventually(() => expect(sent).toHaveLength(1));
    truth = 'present';
    expect(await ask(soon(), of('a'))).toBe('present');
    first.resolve([]);
    expect(await early).toBe('past');
  });
});

describe('a caller', () => {
  it('who left before it was sent has nothing sent, and the others have theirs', async () => {
    const { ask, sent } = calls(async (asks) => asks.map(({ size }) => `answer ${size}`));
    const leaving = new AbortController();
    const left = ask(leaving.signal, of('a', 1));
    const stays = ask(soon(), of('a', 2));
    leaving.abort();
    await expect(left).rejects.toMatchObject({ reason: 'CALL_CANCELLED' });
    expect(await stays).toBe('answer 2');
    expect(sent).toEqual([[of('a', 2)]]);
  });

  it('who leaves meanwhile does not wait, and ends it for nobody else', async () => {
    const held = Promise.withResolvers<readonly string[]>();
    const { ask, sent } = calls(() => held.promise);
    const leaving = new AbortController();
    const left = ask(leaving.signal, of('a'));
    const stays = ask(soon(), of('a'));
    await eventually(() => expect(sent).toHaveLength(1));
    leaving.abort();
    await expect(left).rejects.toMatchObject({ reason: 'CALL_CANCELLED' });
    held.resolve(['one', 'two']);
    expect(await stays).toBe('two');
  });

  it('of a call that fails hears of it, and the next one asks anew', async () => {
    const { ask, sent } = calls(async (asks) => {
      if (sent.length === 1) throw new Error('on purpose');
      return asks.map(() => 'answer');
    });
    const failing = [ask(soon(), of('a')), ask(soon(), of('a'))];
    for (const one of failing) await expect(one).rejects.toThrow('on purpose');
    expect(await ask(soon(), of('a'))).toBe('answer');
  });
});
