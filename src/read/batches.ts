/**
 * Owns the count of what a read asks of Redis and of Postgres, as it happens: how many times one after the other. Commands that go out together are one batch, and so are those that go out
 * while none of the others has been answered yet; whatever goes out after an answer is in the batch after it.
 *
 * What a read shares with others counts for each of them. What it does not wait for counts too, as long as the read lasts; rebuilds do not: they are the repair's, and shared.
 */
import type { Call } from '../runtime.ts';

export interface Batches {
  /** Something goes out now; what is returned is called once, when it has been answered. */
  begin(): () => void;
  /** Batches so far. */
  count(): number;
}

export interface ReadBatches {
  readonly redis: Batches;
  readonly postgres: Batches;
}

/** A call whose batches are counted, where anybody wants to know. */
export interface ReadCall extends Call {
  readonly batches?: ReadBatches;
}

export function createReadBatches(): ReadBatches {
  return { redis: createBatches(), postgres: createBatches() };
}

function createBatches(): Batches {
  let answered = 0;
  let most = 0;
  return {
    begin() {
      const batch = answered + 1;
      most = Math.max(most, batch);
      return () => {
        answered = Math.max(answered, batch);
      };
    },
    count: () => most,
  };
}

export function onRedis<Result>(call: ReadCall, ask: () => Promise<Result>): Promise<Result> {
  return counted(call.batches?.redis, ask);
}

export function onPostgres<Result>(call: ReadCall, ask: () => Promise<Result>): Promise<Result> {
  return counted(call.batches?.postgres, ask);
}

function counted<Result>(batches: Batches | undefined, ask: () => Promise<Result>): Promise<Result> {
  if (!batches) return ask();
  const answered = batches.begin();
  const asked = ask();
  // Before whoever asked goes on.
  asked.then(answered, answered);
  return asked;
}

/** Tells once for each kind how many of it there are: a call for each of a page's keys would cost as much as the page. */
export function tellKinds<Kind extends string>(
  results: readonly { readonly kind: Kind }[],
  tell: (kind: Kind, count: number) => void,
): void {
  const counts = new Map<Kind, number>();
  for (const { kind } of results) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  for (const [kind, count] of counts) tell(kind, count);
}

/** Counts for several reads at once, as long as they are in the set. */
export function countForAll(reads: ReadonlySet<ReadBatches>): ReadBatches {
  const forAll = (pick: (read: ReadBatches) => Batches): Batches => ({
    begin() {
      const answers = [...reads].map((read) => pick(read).begin());
      return () => {
        for (const answered of answers) answered();
      };
    },
    count: () => Math.max(0, ...[...reads].map((read) => pick(read).count())),
  });
  return { redis: forAll((read) => read.redis), postgres: forAll((read) => read.postgres) };
}
