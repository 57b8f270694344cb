/**
 * Owns keeping back the events of the outbox, so that a test sees what a call had done when it answered, and not what an event did a moment later. An event that is kept back looks as if
 * somebody were at it: a trigger in the test's own database gives it a lease that nobody holds.
 */
import type { TestDatabase } from './database.ts';

export interface HeldEvents {
  /** Events appended from now on wait. */
  hold(): Promise<void>;
  /** Lets those that waited, and all to come, be handled. */
  release(): Promise<void>;
}

/** Longer than any test. */
const LEASE = `interval '1 day'`;

/** Once for each database; nothing is held yet. */
export async function createHeldEvents(database: Pick<TestDatabase, 'sql'>): Promise<HeldEvents> {
  await database.sql('CREATE TABLE held_events (held boolean NOT NULL)');
  await database.sql('INSERT INTO held_events VALUES (false)');
  await database.sql(`CREATE FUNCTION hold_event() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF (SELECT held FROM held_events) THEN NEW.lease_until := clock_timestamp() + ${LEASE}; END IF;
    RETURN NEW;
  END $$`);
  await database.sql('CREATE TRIGGER hold_event BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION hold_event()');
  return {
    hold: async () => void (await database.sql('UPDATE held_events SET held = true')),
    async release() {
      await database.sql('UPDATE held_events SET held = false');
      await database.sql(
        `UPDATE outbox SET lease_until = NULL WHERE done_at IS NULL AND lease_until > clock_timestamp() + ${LEASE} / 2`,
      );
    },
  };
}
