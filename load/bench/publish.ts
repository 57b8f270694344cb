/**
 * Owns the ceiling of publishing: the publish flow in process, ten publishers on a pool of ten connections, beside the very statement
 * it ends in, run by ten bare connections. What is between the two is what our own code costs.
 *
 * Invariant: both write the same rows of the same sizes into the same tables of one database, for as many authors, each in a tenant of
 * its own; IDs rise with time on both sides. So neither has the smaller indexes or the warmer pages.
 */
import pg from 'pg';
import { startService } from '../../src/main.ts';
import { type Call, systemRuntime } from '../../src/runtime.ts';
import { createSeeded, type Seeded } from '../../src/sample/seeded.ts';
import { type Persona, personaOf, writePost } from '../../src/sample/text.ts';
import { migrate } from '../../src/store/postgres/migrate.ts';
import { type NewPost, PUBLISH, publishValues } from '../../src/store/postgres/publish.ts';
import {
  composePostId,
  ID_EPOCH_MS,
  type PostId,
  parseTenantId,
  parseUserId,
  postIdFrom,
  type TenantId,
  type UserId,
} from '../../src/timeline/ids.ts';
import { type Bench, benchConfig, withServers } from './bench.ts';
import { type Contender, ratePerSecond, runRounds } from './rounds.ts';

const CONNECTIONS = 10;
/** Calls of the flow under way at once. Each does more than its statement (the author's own timeline, the hint), so that it takes more of them to keep ten connections busy. */
const CALLERS = 32;
/** Enough that hardly two publishers meet on one author's pages of an index. */
const AUTHORS = 2_000;
/** The first rounds pay for connections, prepared statements, compiled code and empty tables. */
const WARM_UPS = 2;
const RATIO_MIN = 0.6;
/** Counted IDs begin in 2021, so that they have as many digits as minted ones. */
const COUNTED_FROM = composePostId({ ms: ID_EPOCH_MS + 366 * 86_400_000, generator: 0, sequence: 0 });

interface Draft {
  readonly author: UserId;
  readonly text: string;
}

export const bench: Bench = {
  run: ({ rounds, roundMs, report, signal }) =>
    withServers(async (servers) => {
      await migrate(servers.postgres.url);
      const service = await startService(
        benchConfig(servers, { DATABASE_POOL_REQUESTS: String(CONNECTIONS), TRIBUTARY_ROLE: 'api' }),
        systemRuntime('warn'),
      );
      const clients = await connectBare(servers.postgres.url);
      try {
        const tenants = { ours: tenantOf('ours'), bare: tenantOf('bare') };
        for (const tenant of Object.values(tenants)) await service.administer.createTenant(signal, tenant);
        const round = (workers: number, operation: (worker: number) => Promise<void>) => () => {
          signal.throwIfAborted();
          return ratePerSecond({ workers, durationMs: roundMs, operation });
        };

        const drafts = { ours: createDrafts(1), bare: createDrafts(1) };
        const flow: Contender = {
          name: 'publish flow',
          round: round(CALLERS, async () => {
            // Deadlines are set by the front door, which is not measured here.
            const call: Call = { tenant: tenants.ours, signal: new AbortController().signal };
            await service.flows.publish(call, { ...drafts.ours(), media: [], visibility: 'public' });
          }),
        };
        let counted: number = COUNTED_FROM;
        const statement: Contender = {
          name: 'bare statement',
          round: round(CONNECTIONS, async (worker) => {
            counted += 1;
            await publishBare(clients[worker], newPost(tenants.bare, postIdFrom(counted), drafts.bare()));
          }),
        };

        const [ours, ceiling] = await runRounds({ contenders: [flow, statement], rounds, warmUps: WARM_UPS, report });
        if (ours === undefined || ceiling === undefined) throw new Error('a contender was not measured');
        return {
          name: 'publish',
          unit: 'posts/s',
          ours,
          against: { ceiling },
          ratioMin: RATIO_MIN,
          conditions: [
            `${CALLERS} callers of the flow over ${CONNECTIONS} connections, beside ${CONNECTIONS} connections that do nothing else, ${AUTHORS.toLocaleString('en-US')} authors; Postgres on this machine, fsync on;`,
            "role api: the flow shows each post on its author's own timeline and hints at its fan-out, which runs elsewhere;",
            `${rounds} rounds of ${roundMs / 1_000} s each in turns after ${WARM_UPS} warm-ups.`,
          ],
        };
      } finally {
        await Promise.allSettled(clients.map((client) => client.end()));
        await service.stop();
      }
    }),
};

/** The same sequence of authors and texts for the same seed. */
function createDrafts(seed: number): () => Draft {
  const random: Seeded = createSeeded(seed);
  const personas: readonly Persona[] = Array.from({ length: AUTHORS }, (_, index) => personaOf(index, random));
  return () => {
    const persona = random.pick(personas);
    const author = parseUserId(persona.id);
    if (author === undefined) throw new Error(`not an author ID: ${persona.id}`);
    return { author, text: writePost(persona, random) };
  };
}

async function connectBare(url: string): Promise<readonly pg.Client[]> {
  const clients = Array.from({ length: CONNECTIONS }, () => new pg.Client({ connectionString: url }));
  await Promise.all(clients.map((client) => client.connect()));
  return clients;
}

async function publishBare(client: pg.Client | undefined, post: NewPost): Promise<void> {
  if (client === undefined) throw new Error('more workers than connections');
  await client.query({ ...PUBLISH, values: [...publishValues(post)] });
}

function newPost(tenant: TenantId, postId: PostId, draft: Draft): NewPost {
  return { tenant, postId, ...draft, media: [], plainRepost: false, visibility: 'public' };
}

function tenantOf(text: string): TenantId {
  const tenant = parseTenantId(text);
  if (tenant === undefined) throw new Error(`not a tenant ID: ${text}`);
  return tenant;
}
