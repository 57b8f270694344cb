/** A stop goes through all of its stages, whatever becomes of each. */
import { expect, it } from 'vitest';
import { type StopStage, stopInOrder } from '../src/ordered-stop.ts';
import { createTestLog } from './harness/service.ts';

it('begins a stage when the one before has ended, and its parts together', async () => {
  const seen: string[] = [];
  const { promise: second, resolve: secondBegun } = Promise.withResolvers<void>();
  const stages: StopStage[] = [
    {
      name: 'calls',
      maxMs: 20_000,
      parts: [
        async () => {
          await second;
          seen.push('first part');
        },
        () => {
          seen.push('second part');
          secondBegun();
        },
      ],
    },
    { name: 'pools', maxMs: 20_000, parts: [() => seen.push('pool')] },
  ];
  await stopInOrder(stages, createTestLog([]));
  expect(seen).toEqual(['second part', 'first part', 'pool']);
});

it('goes on after what fails and what never ends, and says which stages those were', async () => {
  const lines: string[] = [];
  const seen: string[] = [];
  const stages: StopStage[] = [
    {
      name: 'calls',
      maxMs: 20_000,
      parts: [
        () => {
          throw new Error('the port is on fire');
        },
        () => Promise.reject(new Error('so is the other')),
      ],
    },
    { name: 'jobs', maxMs: 10, parts: [() => new Promise(() => undefined)] },
    { name: 'pools', maxMs: 20_000, parts: [() => seen.push('pool')] },
  ];
  await expect(stopInOrder(stages, createTestLog(lines))).rejects.toThrow('not everything was stopped: calls, jobs');
  expect(seen).toEqual(['pool']);
  const logged = lines.map((line) => JSON.parse(line) as { msg: string; stage: string; err?: { message: string } });
  expect(logged.map(({ stage, err }) => [stage, err?.message])).toEqual([
    ['calls', 'the port is on fire'],
    ['calls', 'so is the other'],
    ['jobs', undefined],
  ]);
});
