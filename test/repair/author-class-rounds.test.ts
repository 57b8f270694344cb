/** Owns the rounds that change authors' classes, over real rows: what they are told of followers and of the rate of pushing, and that several at once do each change once. */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { ClassRules } from '../../src/repair/author-class.ts';
import { type ClassStep, createAuthorClassRounds } from '../../src/repair/author-class-rounds.ts';
import * as classes from '../../src/store/postgres/author-classes.ts';
import type { UserId } from '../../src/timeline/ids.ts';
import { type FanoutStage, openStage, soon, user } from '../write/fanout-stage.ts';

const RULES: ClassRules = { up: 3, down: 2, waitMs: 60_000, objectiveSeconds: 30 };

let stage: FanoutStage;
let changes: (ClassStep & { readonly author: UserId })[];
let counted: { readonly both: number; readonly pull: number } | undefined;
beforeAll(async () => {
  stage = await openStage();
});
afterAll(() => stage.close());
beforeEach(async () => {
  changes = [];
  await stage.rows.sql('DELETE FROM authors');
  await stage.rows.sql('DELETE FROM fanout_jobs');
});

function rounds(rules: Partial<ClassRules> = {}): (signal: AbortSignal) => Promise<boolean> {
  const { database } = stage;
  return createAuthorClassRounds({
    rules: { ...RULES, ...rules },
    loadPushFigures: (signal, jobs) => classes.loadPushFigures(database, signal, jobs),
    loadCandidates: (signal, query) => classes.loadClassCandidates(database, signal, query),
    changeClass: (signal, change) => classes.changeClass(database, signal, change),
    countPulledAuthors: (signal) => classes.countPulledAuthors(database, signal),
    events: {
      classChanged: ({ author, from, to, cause }) => changes.push({ author, from, to, cause }),
      authorsCounted: (authors) => {
        counted = authors;
      },
    },
  });
}

async function followed(author: string, count: number, residents: number | null = null): Promise<void> {
  await stage.rows.sql(
    `INSERT INTO authors (tenant_id, author_id, follower_count, resident_followers) VALUES ($1, $2, $3, $4)
    ON CONFLICT (tenant_id, author_id) DO UPDATE SET follower_count = $3, resident_followers = $4`,
    [stage.tenant, author, count, residents],
  );
}

/** A finished job of a large author. */
async function measured(delivered: number, pushingMs: number): Promise<void> {
  await stage.rows.sql(
    `INSERT INTO fanout_jobs (tenant_id, post_id, author_id, lane, delivered, pushing_ms, done_at)
    SELECT $1, coalesce(max(post_id), 0) + 1, 'somebody', 'bulk', $2, $3, now() FROM fanout_jobs`,
    [stage.tenant, delivered, pushingMs],
  );
}

/** As if the last change had been longer ago. */
const age = () => stage.rows.sql("UPDATE authors SET class_changed_at = class_changed_at - interval '1 hour'");
const finishBackfill = () => stage.rows.sql('UPDATE authors SET backfill_finished = true');
const shown = (author: string) =>
  classes.loadShownClass(stage.database, soon(), { tenant: stage.tenant, author: user(author) });

it('take an author up and down again, with a new list each time up', async () => {
  const runOnce = rounds();
  let epoch = 0;
  for (let time = 1; time <= 2; time += 1) {
    const before = epoch;
    await followed('ada', 3);
    await runOnce(soon());
    epoch = (await shown('ada'))?.epoch ?? 0;
    expect(epoch).toBeGreaterThan(before);
    expect(await shown('ada')).toMatchObject({ fanoutClass: 'both', target: 'pull' });
    await runOnce(soon());
    expect(await shown('ada')).toMatchObject({ fanoutClass: 'both' });
    await age();
    await runOnce(soon());
    expect(await shown('ada')).toMatchObject({ fanoutClass: 'pull', epoch });
    expect(counted).toEqual({ both: 0, pull: 1 });
    await followed('ada', 2);
    await runOnce(soon());
    await age();
    await runOnce(soon());
    expect(await shown('ada')).toMatchObject({ fanoutClass: 'both', target: 'push', epoch });
    await finishBackfill();
    await runOnce(soon());
    expect(await shown('ada')).toMatchObject({ fanoutClass: 'push', epoch });
  }
  const way = [
    { author: 'ada', from: 'push', to: 'both', cause: 'followers' },
    { author: 'ada', from: 'both', to: 'pull', cause: 'settled' },
    { author: 'ada', from: 'pull', to: 'both', cause: 'followers' },
    { author: 'ada', from: 'both', to: 'push', cause: 'settled' },
  ];
  expect(changes).toEqual([...way, ...way]);
});

it('keep the list of an author who turns round on the way down', async () => {
  const runOnce = rounds();
  await followed('ada', 3);
  await runOnce(soon());
  const { epoch } = (await shown('ada')) ?? {};
  await age();
  await runOnce(soon());
  await followed('ada', 2);
  await runOnce(soon());
  await finishBackfill();
  await followed('ada', 3);
  await runOnce(soon());
  expect(await shown('ada')).toMatchObject({ fanoutClass: 'both', target: 'pull', epoch, backfilled: false });
});

it('of several relays at the same moment do each change once', async () => {
  const authors = Array.from({ length: 20 }, (_, index) => `a${index}`);
  for (const author of authors) await followed(author, 3);
  await Promise.all([rounds(), rounds(), rounds(), rounds()].map((runOnce) => runOnce(soon())));
  expect(changes.map(({ author }) => author).sort()).toEqual([...authors].sort());
  for (const author of authors) expect(await shown(author)).toMatchObject({ fanoutClass: 'both' });
});

describe('the second guard', () => {
  it('raises an author with few followers whose fan-out would take too long, and keeps them up until it is fast enough', async () => {
    const runOnce = rounds({ up: 1_000, down: 800 });
    await followed('ada', 301, 301);
    await followed('ben', 300, 300);
    await followed('cyd', 200, 10_000);
    // Ten a second: 300 residents take 30 seconds.
    await measured(1_000, 100_000);
    await runOnce(soon());
    expect(changes).toEqual([{ author: 'ada', from: 'push', to: 'both', cause: 'slow_fanout' }]);
    await age();
    await runOnce(soon());
    expect(await shown('ada')).toMatchObject({ fanoutClass: 'pull' });
    await followed('ada', 241, 301);
    await runOnce(soon());
    expect(await shown('ada')).toMatchObject({ fanoutClass: 'pull' });
    await followed('ada', 240, 301);
    await runOnce(soon());
    expect(await shown('ada')).toMatchObject({ fanoutClass: 'both', target: 'push' });
  });

  it('says nothing where too little was measured', async () => {
    const runOnce = rounds({ up: 1_000, down: 800 });
    await followed('ada', 301, 301);
    await measured(999, 1_000_000);
    await runOnce(soon());
    expect(changes).toEqual([]);
    await measured(1, 1_000);
    await runOnce(soon());
    expect(changes).toHaveLength(1);
  });
});
