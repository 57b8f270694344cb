// The types of install.mjs for the TypeScript modules and tests that use it.

interface LockedPackage {
  readonly version?: string;
  readonly integrity?: string;
  readonly optional?: boolean;
  readonly link?: boolean;
}

interface LockFile {
  readonly packages: Readonly<Record<string, LockedPackage>>;
}

type RedisDecision =
  | { readonly kind: 'use'; readonly path: string }
  | { readonly kind: 'apt' }
  | { readonly kind: 'stop'; readonly message: string };

export function needsServers(script: string): boolean;

export function reasonToInstall(given: {
  readonly wanted: LockFile;
  readonly installed: LockFile | undefined;
  readonly isPresent: (location: string) => boolean;
}): string | undefined;

export function findOnPath(given: {
  readonly names: readonly string[];
  readonly searchPath: string | undefined;
  readonly isExecutable: (file: string) => boolean;
}): string | undefined;

export function decideRedis(given: {
  readonly override: string | undefined;
  readonly searchPath: string | undefined;
  readonly isExecutable: (file: string) => boolean;
  readonly isRoot: boolean;
  readonly platform: NodeJS.Platform;
}): RedisDecision;

export function forwards(given: { readonly signal: NodeJS.Signals; readonly hasTerminal: boolean }): boolean;

export function wasAbandoned(given: {
  readonly parent: number;
  readonly parentNow: number;
  readonly isRunByNpm: boolean;
}): boolean;

export function isExecutable(file: string): boolean;

export function findRedisServer(env?: NodeJS.ProcessEnv): string | undefined;
