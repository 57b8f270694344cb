/**
 * Owns the plan of the house: which folder may import which, and where time, randomness and the environment come in. Reads the
 * sources as text. A rule that cannot fail protects nothing, so each is tried on made-up files first.
 */
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, expect, it } from 'vitest';

const SRC = path.resolve(import.meta.dirname, '../src');

/** A part of the house: a folder of src, or a file that stands alone. */
type Part = string;

interface Source {
  /** Path below src, such as `read/posts.ts`. */
  readonly file: string;
  readonly text: string;
}

interface Rule {
  /** Parts whose values may be imported. */
  readonly values: readonly Part[];
  /** Parts of which only types may be imported. */
  readonly types?: readonly Part[];
  /** Packages that this part and no other may import. */
  readonly packages?: readonly string[];
}

const FLOW: Rule = { values: ['store', 'queue', 'degradation', 'metrics', 'timeline', 'errors', 'runtime'] };

const ROOT: Rule = {
  values: [
    'admin',
    'assembly',
    'cache-assembly',
    'class-assembly',
    'config',
    'degradation',
    'degradation-assembly',
    'errors',
    'fanout-assembly',
    'lane-assembly',
    'lifetime',
    'ordered-stop',
    'reconcile-assembly',
    'replica-assembly',
    'metrics',
    'queue',
    'read',
    'repair',
    'rpc',
    'runtime',
    'store',
    'timeline',
    'warm-up-assembly',
    'write',
  ],
};

/** Whatever is not here may not be imported. A part may always import itself. */
const PLAN: Readonly<Record<Part, Rule>> = {
  timeline: { values: [] },
  errors: { values: [] },
  config: { values: [] },
  gen: { values: [] },
  runtime: { values: ['timeline', 'errors'] },
  metrics: { values: ['timeline', 'runtime'], types: ['errors'] },
  // Cached bodies are encoded as the API's own messages.
  store: { values: ['timeline', 'errors', 'runtime', 'gen'] },
  queue: { values: ['timeline', 'errors', 'runtime', 'metrics'] },
  degradation: { values: ['timeline', 'errors', 'runtime', 'metrics'] },
  write: FLOW,
  read: FLOW,
  repair: FLOW,
  rpc: { values: ['gen', 'errors', 'runtime', 'timeline', 'metrics', 'config'], types: ['write', 'read', 'repair'] },
  embedded: { values: ['runtime', 'errors'] },
  sample: { values: ['gen', 'embedded', 'runtime', 'timeline'], types: ['write'] },
  // The composition root: wiring, operators' verbs, start and stop. Nothing imports these but each other and start.ts.
  main: ROOT,
  assembly: ROOT,
  'cache-assembly': ROOT,
  'class-assembly': ROOT,
  'degradation-assembly': ROOT,
  'fanout-assembly': ROOT,
  'lane-assembly': ROOT,
  lifetime: ROOT,
  'ordered-stop': ROOT,
  'reconcile-assembly': ROOT,
  'replica-assembly': ROOT,
  'warm-up-assembly': ROOT,
  admin: ROOT,
  start: { values: ['main', 'lifetime', 'embedded', 'sample', 'gen', 'config', 'runtime', 'store', 'timeline'] },
};

/** Packages that only the named parts may import: SQL and Redis are spoken in one place, RPC in another. */
const PACKAGES: Readonly<Record<string, readonly Part[]>> = {
  // embedded asks a server that it has started whether it answers.
  pg: ['store', 'embedded'],
  ioredis: ['store', 'queue'],
  'node-pg-migrate': ['store'],
  bullmq: ['queue'],
  'prom-client': ['metrics'],
  '@grpc/grpc-js': ['rpc'],
  '@connectrpc/connect': ['rpc', 'sample', 'start'],
  '@connectrpc/connect-node': ['rpc', 'sample', 'start'],
  zod: ['config'],
  pino: ['runtime'],
  vitest: [],
};

const AMBIENT =
  /\bprocess\.env\b|\bDate\.now\b|\bMath\.random\b|\bnew Date\(\)|\bset(?:Timeout|Interval)\(|node:timers/;

/** Where ambient time, randomness, timers and environment are allowed, and why. */
const AMBIENT_ALLOWED: Readonly<Record<string, string>> = {
  'runtime.ts': 'the one source of time and randomness',
  'main.ts': 'reads the environment, once',
  'start.ts': 'reads the environment, once',
  'embedded/': 'speaks to child processes, outside the service and before it runs',
};

const FORBIDDEN_NAMES = /^(?:utils?|helpers?|common|misc|types)(?:\.|$)/;

function partOf(file: string): Part {
  const [first = ''] = file.split('/');
  return first.replace(/\.(?:d\.)?m?ts$|\.mjs$/, '');
}

interface Import {
  readonly from: string;
  readonly typeOnly: boolean;
}

/** Static, dynamic and re-exporting imports of a source. `import { type A }` counts as a type where all of its names do. */
function importsOf(text: string): readonly Import[] {
  const code = text.replace(/\/\*[\s\S]*?\*\//g, '').replace(/^\s*\/\/.*$/gm, '');
  const found: Import[] = [];
  for (const [, type, names = '', from = ''] of code.matchAll(
    /^\s*(?:import|export)\s+(type\s+)?([\w$*{}\s,]+?)\s+from\s+['"]([^'"]+)['"]/gm,
  )) {
    const named = (/^\{([^}]*)\}$/.exec(names)?.[1] ?? '').split(',').map((name) => name.trim());
    const given = named.filter((name) => name !== '');
    const allTypes = given.length > 0 && given.every((name) => name.startsWith('type '));
    found.push({ from, typeOnly: type !== undefined || allTypes });
  }
  for (const [, from = ''] of code.matchAll(/^\s*import\s+['"]([^'"]+)['"]/gm)) found.push({ from, typeOnly: false });
  for (const match of code.matchAll(/\bimport\(\s*['"]([^'"]+)['"]\s*\)/g))
    found.push({ from: match[1] ?? '', typeOnly: false });
  return found;
}

function targetOf(file: string, from: string): string | undefined {
  return from.startsWith('.') ? path.posix.normalize(path.posix.join(path.posix.dirname(file), from)) : undefined;
}

function packageOf(from: string): string {
  return from
    .split('/')
    .slice(0, from.startsWith('@') ? 2 : 1)
    .join('/');
}

/** Every breach of the plan, one line each; empty where the house stands as drawn. */
function breaches(sources: readonly Source[]): readonly string[] {
  return [
    ...sources.flatMap((source) => [...importBreaches(source), ...nameBreaches(source), ...ambientBreaches(source)]),
    ...cycles(sources),
  ];
}

function importBreaches({ file, text }: Source): readonly string[] {
  const part = partOf(file);
  const rule = PLAN[part];
  if (!rule) return [`${file}: ${part} has no place in the plan`];
  return importsOf(text).flatMap(({ from, typeOnly }) => {
    const target = targetOf(file, from);
    if (target === undefined) {
      const owners = PACKAGES[packageOf(from)];
      return owners === undefined || owners.includes(part)
        ? []
        : [`${file}: ${packageOf(from)} belongs to ${owners.join(', ') || 'tests'}`];
    }
    if (target.startsWith('..')) return [`${file}: imports ${from}, outside of src`];
    const other = partOf(target);
    if (other === part || rule.values.includes(other)) return [];
    if (rule.types?.includes(other)) return typeOnly ? [] : [`${file}: may import only types of ${other} (${from})`];
    return [`${file}: ${part} may not import ${other} (${from})`];
  });
}

function nameBreaches({ file }: Source): readonly string[] {
  return file.split('/').some((name) => FORBIDDEN_NAMES.test(name))
    ? [`${file}: the name says nothing of what it owns`]
    : [];
}

function ambientBreaches({ file, text }: Source): readonly string[] {
  if (
    Object.keys(AMBIENT_ALLOWED).some(
      (allowed) => file === allowed || (allowed.endsWith('/') && file.startsWith(allowed)),
    )
  )
    return [];
  const code = text.replace(/\/\*[\s\S]*?\*\//g, '').replace(/\/\/.*$/gm, '');
  const used = AMBIENT.exec(code)?.[0];
  return used === undefined ? [] : [`${file}: takes ${used} from the surroundings instead of the runtime`];
}

/** Cycles of files, each reported once. Types count too: two files that need each other's types are one. */
function cycles(sources: readonly Source[]): readonly string[] {
  const edges = new Map(
    sources.map(({ file, text }) => [file, importsOf(text).flatMap(({ from }) => targetOf(file, from) ?? [])] as const),
  );
  const done = new Set<string>();
  const found: string[] = [];
  const visit = (file: string, trail: readonly string[]): void => {
    const at = trail.indexOf(file);
    if (at >= 0) {
      found.push(`cycle: ${[...trail.slice(at), file].join(' → ')}`);
      return;
    }
    if (done.has(file)) return;
    for (const next of edges.get(file) ?? []) visit(next, [...trail, file]);
    done.add(file);
  };
  for (const file of edges.keys()) visit(file, []);
  return found;
}

function readSources(): readonly Source[] {
  return readdirSync(SRC, { recursive: true, encoding: 'utf8' })
    .map((file) => file.replaceAll(path.sep, '/'))
    .filter((file) => /\.(?:ts|mjs)$/.test(file) && !file.startsWith('gen/'))
    .map((file) => ({ file, text: readFileSync(path.join(SRC, file), 'utf8') }));
}

describe('the house', () => {
  it('stands as it was drawn', () => expect(breaches(readSources())).toEqual([]));

  it('gives the oracle nothing of the product', () => {
    const oracle = readFileSync(path.join(import.meta.dirname, 'harness/oracle.ts'), 'utf8');
    expect(importsOf(oracle)).toEqual([]);
  });
});

describe('a breach of the plan is found', () => {
  const found = (file: string, text: string): readonly string[] => breaches([{ file, text }]);

  it.each([
    { file: 'timeline/merge.ts', text: "import { TributaryError } from '../errors.ts';" },
    { file: 'timeline/merge.ts', text: "import type { Clock } from '../runtime.ts';" },
    { file: 'errors.ts', text: "import type { PostId } from './timeline/ids.ts';" },
    { file: 'config.ts', text: "import { createLog } from './runtime.ts';" },
    { file: 'store/postgres/posts.ts', text: "import { count } from '../../metrics/reads.ts';" },
    { file: 'store/postgres/posts.ts', text: "export { page } from '../../read/page.ts';" },
    { file: 'queue/lanes.ts', text: "import { keys } from '../store/redis/keys.ts';" },
    { file: 'read/posts.ts', text: "import { publish } from '../write/publish.ts';" },
    { file: 'write/publish.ts', text: "import type { Views } from '../read/page.ts';" },
    { file: 'repair/rebuild.ts', text: "const load = await import('../read/posts.ts');" },
    { file: 'read/posts.ts', text: "import { statusOf } from '../rpc/status.ts';" },
    { file: 'rpc/posts.ts', text: "import {\n  createPublish,\n} from '../write/publish.ts';" },
    { file: 'rpc/posts.ts', text: "import { type Views, createPosts } from '../read/page.ts';" },
    { file: 'rpc/posts.ts', text: "import type { Database } from '../store/postgres/client.ts';" },
    { file: 'embedded/postgres.ts', text: "import { configFrom } from '../config.ts';" },
    { file: 'write/publish.ts', text: "import { startService } from '../main.ts';" },
    { file: 'read/posts.ts', text: "import { walk } from '../../test/harness/walk.ts';" },
    { file: 'read/posts.ts', text: "import '../write/publish.ts';" },
    { file: 'attic/chest.ts', text: '' },
  ])('an import upward or sideways: $file, $text', ({ file, text }) => expect(found(file, text)).toHaveLength(1));

  it.each([
    { file: 'read/posts.ts', text: "import pg from 'pg';" },
    { file: 'read/posts.ts', text: "import type { Redis } from 'ioredis';" },
    { file: 'write/publish.ts', text: "import { Code } from '@connectrpc/connect';" },
    { file: 'write/publish.ts', text: "import { Queue } from 'bullmq';" },
    { file: 'timeline/ids.ts', text: "import { z } from 'zod/mini';" },
  ])('a package out of place: $file, $text', ({ file, text }) => expect(found(file, text)).toHaveLength(1));

  it.each(['read/utils.ts', 'store/helpers/rows.ts', 'rpc/common.ts', 'write/misc.ts', 'timeline/types.ts'])(
    'an empty name: %s',
    (file) => expect(found(file, '')).toHaveLength(1),
  );

  it.each([
    'const now = Date.now();',
    'const at = new Date();',
    'if (process.env.DEBUG) run();',
    'setTimeout(run, 5);',
    'Math.random();',
  ])('time or chance from the surroundings: %s', (text) => {
    expect(found('read/posts.ts', text)).toHaveLength(1);
    expect(found('runtime.ts', text)).toEqual([]);
  });

  it('a cycle', () => {
    const sources = [
      { file: 'timeline/a.ts', text: "import { b } from './b.ts';" },
      { file: 'timeline/b.ts', text: "import type { C } from './c.ts';" },
      { file: 'timeline/c.ts', text: "export * from './a.ts';" },
    ];
    expect(breaches(sources)).toEqual(['cycle: timeline/a.ts → timeline/b.ts → timeline/c.ts → timeline/a.ts']);
  });
});

describe('what the plan allows', () => {
  it.each([
    { file: 'read/posts.ts', text: "import { hiddenReason } from '../timeline/visibility.ts';" },
    { file: 'read/posts.ts', text: "import { views } from './page.ts';" },
    { file: 'rpc/posts.ts', text: "import type { ReadPosts } from '../read/posts.ts';" },
    { file: 'rpc/posts.ts', text: "import { type ReadPosts, type Other } from '../read/posts.ts';" },
    { file: 'store/postgres/posts.ts', text: "import pg from 'pg';" },
    { file: 'read/posts.ts', text: "// import { publish } from '../write/publish.ts'; const a = Date.now();" },
    { file: 'store/where.ts', text: "export const root = path.join(import.meta.dirname, '..');" },
    { file: 'read/posts.ts', text: "/*\n import { publish } from '../write/publish.ts';\n*/" },
  ])('passes: $file, $text', ({ file, text }) => expect(breaches([{ file, text }])).toEqual([]));
});
