/** Owns what the deployment files promise, as far as text can be asked: no container engine runs here. */
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { configFrom, ROLES } from '../src/config.ts';
import { configVariables } from './config-variables.ts';

const ROOT = path.resolve(import.meta.dirname, '..');
/** A timeline at its largest cap, one stride and the state member: see DESIGN, why -ID. */
const LISTPACK_ENTRIES_MIN = 2_000 + 64 + 1;

interface ComposeService {
  readonly image: string;
  readonly build?: string;
  readonly command?: readonly string[];
  readonly environment?: Readonly<Record<string, string>>;
  readonly healthcheck?: { readonly test: readonly string[] };
  readonly ports?: readonly string[];
  readonly volumes?: readonly string[];
  readonly depends_on?: Readonly<Record<string, { readonly condition: string }>>;
}

function read(file: string): string {
  return readFileSync(path.join(ROOT, file), 'utf8');
}

const compose = parse(read('docker-compose.yml'), { merge: true }) as {
  readonly services: Readonly<Record<string, ComposeService>>;
  readonly volumes: Readonly<Record<string, unknown>>;
};
const stores = ['postgres', 'redis-cache', 'redis-queue'];
const roles = ['api', 'relay', 'worker'];

function serviceOf(name: string): ComposeService {
  const service = compose.services[name];
  if (service === undefined) throw new Error(`no service ${name}`);
  return service;
}

/** Options of a Redis command line by name. */
function redisOptions(name: string): ReadonlyMap<string, string> {
  const [program, ...options] = serviceOf(name).command ?? [];
  expect(program).toBe('redis-server');
  return new Map(options.map((option) => /^--(\S+) (.+)$/.exec(option)?.slice(1) as [string, string]));
}

describe('docker-compose.yml', () => {
  it('has the stores, and every role as a service of one image', () => {
    expect(Object.keys(compose.services)).toEqual([...stores, ...roles]);
    expect(new Set(roles.map((role) => serviceOf(role).image)).size).toBe(1);
    for (const role of roles) {
      expect(ROLES).toContain(role);
      expect(serviceOf(role).environment?.['TRIBUTARY_ROLE']).toBe(role);
    }
  });

  it('names a version of every image', () => {
    for (const [name, { image }] of Object.entries(compose.services)) {
      expect(image, name).toMatch(/^[a-z/-]+:\d/);
      expect(image, name).not.toContain('latest');
    }
  });

  it('lets the cache evict and keep nothing, with timelines that fit a listpack', () => {
    const options = redisOptions('redis-cache');
    expect(options.get('save')).toBe('""');
    expect(options.get('appendonly')).toBe('no');
    expect(options.get('maxmemory-policy')).toMatch(/^allkeys-/);
    expect(options.get('maxmemory')).toMatch(/^\d+mb$/);
    expect(Number(options.get('zset-max-listpack-entries'))).toBeGreaterThanOrEqual(LISTPACK_ENTRIES_MIN);
    expect(serviceOf('redis-cache').volumes).toBeUndefined();
  });

  it('lets the queue keep everything and evict nothing', () => {
    const options = redisOptions('redis-queue');
    expect(options.get('appendonly')).toBe('yes');
    expect(options.get('maxmemory-policy')).toBe('noeviction');
    expect(serviceOf('redis-queue').volumes).toHaveLength(1);
  });

  it('starts the roles once every store is healthy', () => {
    for (const store of stores) {
      expect(serviceOf(store).healthcheck?.test[0]).toBe('CMD');
      for (const role of roles) expect(serviceOf(role).depends_on?.[store]?.condition).toBe('service_healthy');
    }
  });

  it('sets only variables that the configuration knows, and all that it demands', () => {
    const known = configVariables().map((variable) => variable.name);
    for (const role of roles) {
      const { environment = {} } = serviceOf(role);
      expect(known).toEqual(expect.arrayContaining(Object.keys(environment)));
      const secrets = { PAGE_TOKEN_KEYS: Buffer.alloc(32).toString('base64'), POSTGRES_PASSWORD: 'secret' };
      const filled = Object.entries(environment).map(([name, value]) => [
        name,
        value.replace(/\$\{(\w+):\?[^}]*\}/g, (_, secret: keyof typeof secrets) => secrets[secret]),
      ]);
      expect(configFrom(Object.fromEntries(filled)).role).toBe(role);
    }
  });

  it('holds no secret, and publishes nothing beyond this machine', () => {
    expect(read('docker-compose.yml')).not.toMatch(/(PASSWORD|KEYS): (?!\$\{)/);
    for (const port of serviceOf('api').ports ?? []) expect(port).toMatch(/^127\.0\.0\.1:/);
  });
});

describe('Dockerfile', () => {
  const lines = read('Dockerfile')
    .replaceAll('\\\n', ' ')
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#'));

  it('copies only what is there, and what .dockerignore lets through', () => {
    const ignored = read('.dockerignore').split('\n');
    expect(ignored).toContain('*');
    const copies = lines.filter((line) => line.startsWith('COPY ') && !line.includes('--from='));
    const paths = copies.flatMap((line) => line.split(/\s+/).slice(1, -1));
    expect(paths).not.toEqual([]);
    for (const each of paths) {
      expect(existsSync(path.join(ROOT, each)), each).toBe(true);
      expect(ignored).toContain(`!${each}`);
    }
  });

  it('brings the migrations beside the module that runs them', () => {
    expect(read('Dockerfile')).toContain('cp -r src/store/postgres/migrations dist/store/postgres/migrations');
    expect(existsSync(path.join(ROOT, 'src/store/postgres/migrations'))).toBe(true);
  });

  it('runs what the build makes, not as root, on the pinned Node', () => {
    const { devDependencies } = JSON.parse(read('package.json')) as { devDependencies: Record<string, string> };
    const { compilerOptions } = JSON.parse(read('tsconfig.build.json')) as { compilerOptions: Record<string, string> };
    for (const line of lines.filter((each) => each.startsWith('FROM '))) {
      expect(line).toMatch(new RegExp(`^FROM node:${devDependencies['node']}-slim`));
    }
    expect(lines.at(-1)).toBe(`CMD ["node", "${compilerOptions['outDir']}/main.js"]`);
    expect(existsSync(path.join(ROOT, `${compilerOptions['rootDir']}/main.ts`))).toBe(true);
    expect(lines.indexOf('USER node')).toBeGreaterThan(lines.findLastIndex((line) => line.startsWith('FROM ')));
  });

  it('asks for its health without tools that the image lacks', () => {
    const health = lines.find((line) => line.startsWith('HEALTHCHECK'));
    expect(health).toContain('["node", "-e"');
    expect(health).toContain('/livez');
  });
});
