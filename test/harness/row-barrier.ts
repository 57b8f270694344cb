/**
 * Owns stopping whoever updates a row at that very statement: a trigger in the test's own database that waits for a lock which the test holds. So a test can kill or delete at a
 * chosen line of a process that it cannot see into.
 */
import type { TestDatabase } from './database.ts';
import { eventually } from './eventually.ts';

export interface RowBarrier {
  /** Resolves when somebody stands before it. */
  reached(): Promise<void>;
  /** Lets everybody through, those to come too. */
  open(): Promise<void>;
  /** Ends the sessions of those who stand before it, as the server does when it finds their process gone: their update never happens. */
  cut(): Promise<void>;
}

const REACHED_MAX_MS = 20_000;

let made = 0;

/** Holds updates of `table` for which `when` is true, an expression over OLD and NEW. Whoever may be held needs a lock time-out longer than the test takes. */
export async function holdUpdates(
  database: TestDatabase,
  { table, when }: { readonly table: 'fanout_jobs' | 'outbox'; readonly when: string },
): Promise<RowBarrier> {
  made += 1;
  const number = made;
  const holder = await database.session();
  await holder.query('SELECT pg_advisory_lock($1)', [number]);
  await database.sql(`CREATE FUNCTION barrier_${number}() RETURNS trigger LANGUAGE plpgsql
    AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(${number}); RETURN NEW; END $$`);
  await database.sql(
    `CREATE TRIGGER barrier_${number} BEFORE UPDATE ON ${table} FOR EACH ROW WHEN (${when}) EXECUTE FUNCTION barrier_${number}()`,
  );
  const WAITING = `FROM pg_locks l JOIN pg_database d ON d.oid = l.database
    WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.objid = ${number} AND NOT l.granted`;
  return {
    reached: () =>
      eventually(
        async () => {
          if ((await database.sql(`SELECT 1 ${WAITING}`)).length === 0)
            throw new Error('nobody stands before the barrier');
        },
        { timeoutMs: REACHED_MAX_MS },
      ),
    cut: async () => void (await database.sql(`SELECT pg_terminate_backend(l.pid) ${WAITING}`)),
    open: async () => void (await holder.query('SELECT pg_advisory_unlock($1)', [number])),
  };
}
