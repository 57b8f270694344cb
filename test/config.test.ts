/** What an operator may set, and what a wrong setting does: it is named, and never taken for another. */
import { expect, it } from 'vitest';
import { configFrom, redacted } from '../src/config.ts';

const ENOUGH = {
  DATABASE_URL: 'postgresql://ours:secret1@db/tributary?password=secret2&sslmode=require',
  REDIS_CACHE_URL: 'redis://:secret3@cache',
  REDIS_QUEUE_URL: 'redis://queue?password=secret4',
  PAGE_TOKEN_KEYS: Buffer.alloc(32, 'secret5').toString('base64'),
};

it.each(['', ' ', '-1', '1.5', '0x10', '1e3', 'ten', '99999999999'])(
  'a number that is set to "%s" is refused by its name, and not taken for another',
  (value) => {
    expect(() => configFrom({ ...ENOUGH, DRAIN_TIMEOUT_MS: value })).toThrow('DRAIN_TIMEOUT_MS');
  },
);

it('numbers are taken as written, and have a default where they are absent', () => {
  const config = configFrom({ ...ENOUGH, DRAIN_TIMEOUT_MS: '0', TRIBUTARY_GRPC_PORT: '65535' });
  expect([config.drainTimeoutMs, config.grpcPort, config.httpPort]).toEqual([0, 65_535, 8_080]);
});

it.each(['short', 'c2hvcnQ=', `${'A'.repeat(60)} and more`, `${'A'.repeat(60)},`])(
  'a key for page tokens that is "%s" is refused',
  (keys) => {
    expect(() => configFrom({ ...ENOUGH, PAGE_TOKEN_KEYS: keys })).toThrow('PAGE_TOKEN_KEYS');
  },
);

it('holds no secret in print, wherever a URL has it', () => {
  const printed = JSON.stringify(redacted(configFrom(ENOUGH)));
  expect(printed).not.toMatch(/secret/);
  expect(printed).toContain('sslmode=require');
});

it('names what is wrong and shows no value', () => {
  const url = 'mysql://ours:secret@db';
  expect(() => configFrom({ ...ENOUGH, DATABASE_URL: url })).toThrow(/DATABASE_URL(?!.*secret)/s);
});
