/** Owns the command line of `npm run admin -- <verb>`: what operators do until AdminService. Belongs to the composition root. */
import { parseArgs } from 'node:util';
import { assemble } from './assembly.ts';
import { assembleCache, type CacheAssembly, openCache } from './cache-assembly.ts';
import { type Config, configFrom } from './config.ts';
import { createMetrics } from './metrics/metrics.ts';
import type { RebuildOutcome } from './repair/rebuild.ts';
import { type Call, systemRuntime } from './runtime.ts';
import type { ShownClass } from './store/postgres/author-classes.ts';
import { createDatabase, type Database } from './store/postgres/client.ts';
import * as dead from './store/postgres/fanout-dead.ts';
import { migrate } from './store/postgres/migrate.ts';
import { hasTenant, KEY_ROLES, type KeyRole } from './store/postgres/tenants.ts';
import {
  POST_ID_MAX,
  type PostId,
  parsePostId,
  parseTenantId,
  parseUserId,
  type TenantId,
  type UserId,
} from './timeline/ids.ts';
import { MODERATION_STATES, type ModerationState } from './timeline/post.ts';
import type { Administer } from './write/administer.ts';
import { createDeadLetters, type DeadLetterName, type DeadLetters } from './write/dead-letters.ts';

const USAGE = `Usage: npm run admin -- <verb> [options]
  migrate                                              bring the database's schema to the newest version
  create-tenant   --tenant T
  create-key      --tenant T [--role service|admin]    prints the key, once
  revoke-key      --key K
  suspend-author  --tenant T --author A                hides all posts of the author, at once
  restore-author  --tenant T --author A
  author-class    --tenant T --author A                shows how the author's posts reach followers
  moderate-post   --tenant T --post P --state clear|sensitive|hidden
  recount-followers --tenant T [--author A | --after A]  counts followers anew from the follows: of one author, or of all (after one)
  rebuild         --tenant T --viewer V                deletes the viewer's home timeline from the cache and builds it anew, in one go
  fanout-dead     [--after LINE]                       fan-outs that were put aside, 100 at a time
  fanout-retry    <tenant> <post> [generation] | --all puts them back, to go on from their checkpoints
The database is the one of DATABASE_URL, the cache the one of REDIS_CACHE_URL: what an author or a post must no longer show is deleted there.`;

/** Bound of one verb. */
const DEADLINE_MS = 30_000;

interface Options {
  /** What stands behind the verb without a name. */
  readonly words: readonly string[];
  readonly all: boolean;
  readonly named: Readonly<Record<string, string | undefined>>;
}

interface Desk {
  readonly administer: Administer;
  readonly deadLetters: DeadLetters;
  readonly rebuildHome: (call: Call, viewer: UserId) => Promise<string>;
}

type Verb = (desk: Desk, signal: AbortSignal, options: Options) => Promise<string>;

const VERBS: Readonly<Record<string, Verb>> = {
  async 'create-tenant'({ administer }, signal, options) {
    const tenant = tenantIn(options);
    await administer.createTenant(signal, tenant);
    return `tenant ${tenant} created`;
  },
  'create-key': ({ administer }, signal, options) =>
    administer.createKey(signal, { tenant: tenantIn(options), role: roleIn(options) }),
  async 'revoke-key'({ administer }, signal, options) {
    return (await administer.revokeKey(signal, given(options, 'key'))) ? 'key revoked' : 'no such key is in force';
  },
  async 'suspend-author'({ administer }, signal, options) {
    await administer.suspendAuthor({ tenant: tenantIn(options), signal }, authorIn(options));
    return 'author suspended';
  },
  async 'restore-author'({ administer }, signal, options) {
    await administer.restoreAuthor({ tenant: tenantIn(options), signal }, authorIn(options));
    return 'author restored';
  },
  async 'author-class'({ administer }, signal, options) {
    const shown = await administer.showAuthorClass({ tenant: tenantIn(options), signal }, authorIn(options));
    return shown ? describeClass(shown) : 'class push, never changed; nothing is stored of this author';
  },
  async 'moderate-post'({ administer }, signal, options) {
    const post = await administer.moderatePost(
      { tenant: tenantIn(options), signal },
      { postId: postIn(options), state: stateIn(options) },
    );
    return `post ${post.meta.postId} is ${post.meta.moderation}`;
  },
  async 'recount-followers'({ administer }, signal, options) {
    const { authors, corrected, stoppedAfter } = await administer.recountFollowers(
      { tenant: tenantIn(options), signal },
      options.named['author'] !== undefined
        ? { author: authorIn(options) }
        : { after: options.named['after'] === undefined ? '' : userIn(options, 'after') },
    );
    const counted = `${authors} authors counted, ${corrected} put right`;
    return stoppedAfter === undefined ? counted : `${counted}; there are more: go on with --after ${stoppedAfter}`;
  },
  rebuild: ({ rebuildHome }, signal, options) =>
    rebuildHome({ tenant: tenantIn(options), signal }, userIn(options, 'viewer')),
  async 'fanout-dead'({ deadLetters }, signal, options) {
    const { lines, more } = await deadLetters.list(signal, options.named['after']);
    if (lines.length === 0) return 'no dead letters';
    return [...lines, ...(more === undefined ? [] : [`more: --after ${more}`])].join('\n');
  },
  async 'fanout-retry'({ deadLetters }, signal, options) {
    if (options.all && options.words.length > 0) throw new Error(`Either a tenant and a post, or --all.\n${USAGE}`);
    const retried = options.all
      ? await deadLetters.retryAll(signal)
      : await deadLetters.retry(signal, deadLetterIn(options));
    return retried === 0 ? 'no such dead letter' : `put back: ${retried}`;
  },
};

/** Does one verb and prints what came of it. Throws an Error that says what was wrong, the usage with it where the call was. */
export async function runAdmin(
  args: readonly string[],
  env: Readonly<Record<string, string | undefined>>,
  print: (line: string) => void,
): Promise<void> {
  const [verb, ...rest] = args;
  // Page tokens and ports play no part here: an operator's shell needs the database alone.
  const config = configFrom({
    REDIS_CACHE_URL: 'redis://127.0.0.1:6379',
    REDIS_QUEUE_URL: 'redis://127.0.0.1:6380',
    PAGE_TOKEN_KEYS: Buffer.alloc(32).toString('base64'),
    ...env,
  });
  if (verb === 'migrate') {
    await migrate(config.databaseUrl, print);
    return print('the schema is up to date');
  }
  const run = verb === undefined || !Object.hasOwn(VERBS, verb) ? undefined : VERBS[verb];
  if (!run) throw new Error(`${verb === undefined ? 'No verb given.' : `There is no verb "${verb}".`}\n${USAGE}`);

  const options = optionsFrom(rest, { wordsMax: verb === 'fanout-retry' ? 3 : 0 });
  const runtime = systemRuntime('warn');
  const metrics = createMetrics();
  const database = createDatabase({
    ...config.database,
    url: config.databaseUrl,
    pool: 'admin',
    connectionsMax: 2,
    acquireTimeoutMs: DEADLINE_MS,
    // A recount reads all followers of an author, some millions in a few seconds.
    statementTimeoutMs: DEADLINE_MS,
    events: {
      clientFailed: (_pool, error) => runtime.log.warn({ err: error }, 'a database connection failed'),
      statementCancelled: () => undefined,
    },
  });
  const cache = openCache(config, runtime, metrics);
  try {
    // Commands fail while there is no connection, and a verb asks once.
    if (verb === 'rebuild') await cache.ready(AbortSignal.timeout(DEADLINE_MS));
    const cached = assembleCache({ config, runtime, metrics, database, cache });
    const { administer } = assemble({ config, runtime, metrics, database, cache: cached, nudge: () => undefined });
    const deadLetters = createDeadLetters({
      list: (signal, input) => dead.listDeadJobs(database, signal, input),
      retry: (signal, job) => dead.retryDeadJob(database, signal, job),
      retrySome: (signal, input) => dead.retryDeadJobs(database, signal, input),
      loadNow: (signal) => dead.loadNow(database, signal),
    });
    const rebuildHome = createRebuildHome(database, cached, config.timeline);
    print(await run({ administer, deadLetters, rebuildHome }, AbortSignal.timeout(DEADLINE_MS), options));
  } finally {
    await Promise.all([database.close(), cache.close()]);
  }
}

/** Throws where the timeline is not there in the end, so that a script sees it by the exit code. */
function createRebuildHome(
  database: Database,
  { forceRebuild, timelines }: CacheAssembly,
  { cap, stride }: Config['timeline'],
): Desk['rebuildHome'] {
  return async (call, viewer) => {
    const { tenant, signal } = call;
    if (!(await hasTenant(database, signal, tenant))) throw new Error(`There is no tenant ${tenant}.`);
    const outcome = await forceRebuild(call, viewer);
    if (outcome !== 'rebuilt' && outcome !== 'ready')
      throw new Error(`${NOT_REBUILT[outcome]} Nothing is lost: a reader rebuilds it.`);
    const query = { tenant, viewer, direction: 'older', position: POST_ID_MAX, count: cap + stride } as const;
    const page = await timelines.page(signal, query);
    if (page.state !== 'ready')
      throw new Error(
        'The timeline was rebuilt, and is gone again: the cache is short of memory, or somebody dropped it.',
      );
    const reach = page.floor === 0 ? 'all there are' : `down to ${page.floor}, below which pages come from Postgres`;
    return `home of ${viewer} rebuilt: ${page.ids.length} entries, ${reach}`;
  };
}

const NOT_REBUILT: Readonly<Record<Exclude<RebuildOutcome, 'rebuilt' | 'ready'>, string>> = {
  busy: 'The timeline was dropped, and another process is still at its rebuild.',
  lost: 'The timeline was dropped, and again each time it was being rebuilt.',
  overloaded: 'The timeline was dropped, and was not rebuilt: too many rebuilds run.',
  failed: 'The timeline was dropped, and was not rebuilt: the cache or the database did not do it.',
  cooling_down: 'The timeline was dropped, and was not rebuilt: an attempt failed a moment ago.',
};

function describeClass(shown: ShownClass): string {
  const { fanoutClass, target, epoch, changedAt, followers, residentFollowers, backfillCursor, backfilled } = shown;
  const down = fanoutClass === 'both' && target === 'push';
  return [
    `class ${fanoutClass}${fanoutClass === 'both' ? `, on the way to ${target}` : ''}, ${changedAt === undefined ? 'never changed' : `since ${changedAt}`}`,
    `class epoch ${epoch}`,
    `followers ${followers}, resident at the last large fan-out ${residentFollowers ?? 'not measured'}`,
    ...(down ? [`backfill ${backfilled ? 'finished' : `at follower "${backfillCursor}"`}`] : []),
  ].join('\n');
}

function optionsFrom(args: readonly string[], { wordsMax }: { readonly wordsMax: number }): Options {
  const text = { type: 'string' } as const;
  try {
    const { positionals, values } = parseArgs({
      args: [...args],
      allowPositionals: wordsMax > 0,
      options: {
        tenant: text,
        viewer: text,
        role: text,
        key: text,
        author: text,
        post: text,
        state: text,
        after: text,
        all: { type: 'boolean', default: false },
      },
    });
    if (positionals.length > wordsMax) throw new Error(`Unexpected: ${positionals[wordsMax]}.`);
    const { all, ...named } = values;
    return { words: positionals, all, named };
  } catch (error) {
    throw new Error(`${error instanceof Error ? error.message : String(error)}\n${USAGE}`);
  }
}

function given(options: Options, name: string): string {
  const value = options.named[name];
  if (value === undefined) throw new Error(`--${name} is needed.\n${USAGE}`);
  return value;
}

function tenantIn(options: Options): TenantId {
  return parseTenantId(given(options, 'tenant')) ?? wrong('tenant', '1 to 64 characters of [A-Za-z0-9_.~-]');
}

function authorIn(options: Options): UserId {
  return userIn(options, 'author');
}

function userIn(options: Options, name: string): UserId {
  return parseUserId(given(options, name)) ?? wrong(name, '1 to 64 characters of [A-Za-z0-9_.~-]');
}

function postIn(options: Options): PostId {
  return parsePostId(given(options, 'post')) ?? wrong('post', 'a decimal number from 1 to 2^53-1');
}

function roleIn(options: Options): KeyRole {
  const role = options.named['role'] ?? 'service';
  return KEY_ROLES.find((known) => known === role) ?? wrong('role', `one of ${KEY_ROLES.join(', ')}`);
}

function stateIn(options: Options): ModerationState {
  const state = given(options, 'state');
  return MODERATION_STATES.find((known) => known === state) ?? wrong('state', `one of ${MODERATION_STATES.join(', ')}`);
}

function deadLetterIn({ words: [tenant, post, generation] }: Options): DeadLetterName {
  if (tenant === undefined || post === undefined)
    throw new Error(`A tenant and a post are needed, or --all.\n${USAGE}`);
  const postId = parsePostId(post);
  const tenantId = parseTenantId(tenant);
  const number = generation === undefined ? undefined : Number(generation);
  if (tenantId === undefined || postId === undefined || (number !== undefined && !(number >= 1 && number < 2 ** 31))) {
    throw new Error(`That is no tenant, post and generation.\n${USAGE}`);
  }
  return { tenant: tenantId, postId, ...(number !== undefined && { generation: number }) };
}

function wrong(option: string, expected: string): never {
  throw new Error(`--${option} must be ${expected}.`);
}
