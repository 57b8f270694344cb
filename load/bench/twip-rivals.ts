/**
 * Owns the rivals of Twip as their authors built them: a client that pushes into sorted sets of Redis, and a table of timelines that triggers of Postgres maintain.
 * Invariant: neither trims, expires or hides anything, and texts are kept where the timelines are, so that a check is one round trip.
 */
import { Redis } from 'ioredis';
import type pg from 'pg';
import type { Database, Statement } from '../../src/store/postgres/client.ts';
import type { TwipContender } from './twip-contender.ts';
import { followeesOf, type TwipGraph } from './twip-graph.ts';

/** Rows of one statement, members of one pipeline. */
const AT_ONCE = 10_000;

export interface ClientPush extends TwipContender {
  seed(graph: TwipGraph, signal: AbortSignal): Promise<void>;
  close(): void;
}

/** What is to be committed before Redis is told; nothing for the rival as it was published. */
export interface Truth {
  post(of: { readonly user: number; readonly text: string }): Promise<void>;
  subscribe(of: { readonly user: number; readonly to: number }): Promise<void>;
}

/** Keys are read back as they were written, one for each user: `f:` followers, `p:` own posts, `t:` timeline. */
export function openClientPush(name: string, url: string, truth?: Truth): ClientPush {
  // Commands of one turn of the event loop go out together, which helps it most.
  const redis = new Redis(url, { maxRetriesPerRequest: null, enableAutoPipelining: true, keyPrefix: `${name}:` });
  return {
    name,
    async seed(graph, signal) {
      for (let from = 0; from < graph.users; ) {
        signal.throwIfAborted();
        const pipeline = redis.pipeline();
        for (let members = 0; from < graph.users && members < AT_ONCE; from += 1) {
          const followees = followeesOf(graph, from);
          members += followees.length;
          for (const followee of followees) pipeline.sadd(`f:${followee}`, String(from));
        }
        await confirmed(pipeline.exec());
      }
    },
    async post({ tick, user, text }) {
      await truth?.post({ user, text });
      const member = `${tick}|${text}`;
      await redis.zadd(`p:${user}`, tick, member);
      const pipeline = redis.pipeline();
      for (const follower of await redis.smembers(`f:${user}`)) pipeline.zadd(`t:${follower}`, tick, member);
      await confirmed(pipeline.exec());
    },
    async subscribe({ user, to }) {
      await truth?.subscribe({ user, to });
      await redis.sadd(`f:${to}`, String(user));
      const posts = await redis.zrange(`p:${to}`, 0, '-1', 'WITHSCORES');
      if (posts.length === 0) return;
      await redis.zadd(`t:${user}`, ...(scoredMembers(posts) as [string, string]));
    },
    async check({ user, since, tick }) {
      const members = await redis.zrangebyscore(`t:${user}`, since, `(${tick}`);
      return members.map((member) => member.slice(member.indexOf('|') + 1));
    },
    close: () => redis.disconnect(),
  };
}

async function confirmed(
  results: Promise<readonly (readonly [error: Error | null, result: unknown])[] | null>,
): Promise<void> {
  for (const [error] of (await results) ?? []) if (error) throw error;
}

/** The score stands before the member in what is written, and after it in what is read: a flat list by RESP2, pairs by RESP3. */
function scoredMembers(replies: readonly (string | readonly (string | number)[])[]): string[] {
  const flat = replies.flat().map(String);
  return flat.map((_, index) => flat[index % 2 === 0 ? index + 1 : index - 1] as string);
}

const TRIGGER_TABLES = `
CREATE TABLE rival_follows (followee integer NOT NULL, follower integer NOT NULL, PRIMARY KEY (followee, follower));
CREATE TABLE rival_posts (author integer NOT NULL, tick bigint NOT NULL, text text NOT NULL, PRIMARY KEY (author, tick));
CREATE TABLE rival_timelines (viewer integer NOT NULL, tick bigint NOT NULL, text text NOT NULL, PRIMARY KEY (viewer, tick));`;

/** After the graph has been seeded, which no post has to be brought in for. */
const TRIGGERS = `
CREATE FUNCTION rival_push() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO rival_timelines SELECT follower, NEW.tick, NEW.text FROM rival_follows WHERE followee = NEW.author;
  RETURN NULL;
END $$;
CREATE TRIGGER rival_push AFTER INSERT ON rival_posts FOR EACH ROW EXECUTE FUNCTION rival_push();
CREATE FUNCTION rival_backfill() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO rival_timelines SELECT NEW.follower, tick, text FROM rival_posts WHERE author = NEW.followee ON CONFLICT DO NOTHING;
  RETURN NULL;
END $$;
CREATE TRIGGER rival_backfill AFTER INSERT ON rival_follows FOR EACH ROW EXECUTE FUNCTION rival_backfill();`;

const POST: Statement = { name: 'rival-post', text: 'INSERT INTO rival_posts VALUES ($1, $2, $3)' };
const SUBSCRIBE: Statement = {
  name: 'rival-subscribe',
  text: 'INSERT INTO rival_follows VALUES ($1, $2) ON CONFLICT DO NOTHING',
};
const CHECK: Statement = {
  name: 'rival-check',
  text: 'SELECT text FROM rival_timelines WHERE viewer = $1 AND tick >= $2 AND tick < $3 ORDER BY tick DESC',
};

export interface TriggerTable extends TwipContender {
  seed(client: pg.Client, graph: TwipGraph, signal: AbortSignal): Promise<void>;
}

/** `database`: a pool like that of ours. */
export function openTriggerTable(database: Database, signal: AbortSignal): TriggerTable {
  return {
    name: 'trigger table',
    async seed(client, graph, seeding) {
      await client.query(TRIGGER_TABLES);
      for (let from = 0; from < graph.users; ) {
        seeding.throwIfAborted();
        const pairs: { readonly followees: number[]; readonly followers: number[] } = { followees: [], followers: [] };
        for (; from < graph.users && pairs.followees.length < AT_ONCE; from += 1) {
          for (const followee of followeesOf(graph, from)) {
            pairs.followees.push(followee);
            pairs.followers.push(from);
          }
        }
        await client.query('INSERT INTO rival_follows SELECT * FROM unnest($1::int[], $2::int[])', [
          pairs.followees,
          pairs.followers,
        ]);
      }
      await client.query('VACUUM (ANALYZE) rival_follows');
      await client.query(TRIGGERS);
    },
    async post({ tick, user, text }) {
      await database.query(signal, POST, [user, tick, text]);
    },
    async subscribe({ user, to }) {
      await database.query(signal, SUBSCRIBE, [to, user]);
    },
    async check({ user, since, tick }) {
      const rows = await database.query<{ readonly text: string }>(signal, CHECK, [user, since, tick]);
      return rows.map((row) => row.text);
    },
  };
}
