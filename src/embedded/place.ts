// Owns who the servers run as and where their files live.
//
// Postgres refuses to run as root, so root hands the servers to an account without rights. That account has to be able to
// enter the folders of the data and of the binaries, which it cannot when the project lies below a home of mode 0700 such
// as /root. Then both live outside, in a folder of root's below /var/tmp (or the temporary folder) named after the
// project's path; otherwise they stay inside the project.
// Invariant: the same project path and data path always lead to the same place.

import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmodSync, existsSync, lstatSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';

export interface Account {
  readonly name: string;
  readonly uid: number;
  readonly gid: number;
}

export const projectRoot: string = path.resolve(import.meta.dirname, '..', '..');

/** One of our own first, should somebody have made it; `nobody` exists on every system. */
const accountNames = ['tributary', 'postgres', 'nobody'];

/** The account the servers run as; undefined = the one this process runs as, which is not root. */
export function chooseAccount(): Account | undefined {
  if (process.getuid?.() !== 0) return undefined;
  const accounts = readFileSync('/etc/passwd', 'utf8')
    .split('\n')
    .map((line) => line.split(':'))
    .map(([name = '', , uid, gid]) => ({ name, uid: Number(uid), gid: Number(gid) }));
  const found = accountNames.flatMap((name) =>
    accounts.filter((account) => account.name === name && account.uid !== 0),
  )[0];
  if (found === undefined) {
    throw new Error(`Postgres does not run as root, and none of the accounts ${accountNames.join(', ')} exists`);
  }
  return found;
}

/** Can the account pass through the folder and all above it? Goes by mode bits; access lists are not read. */
export function canEnter(account: Account | undefined, folder: string): boolean {
  if (account === undefined) return true;
  for (let each = folder; ; each = path.dirname(each)) {
    const { uid, gid, mode } = statSync(each);
    const shift = uid === account.uid ? 6 : gid === account.gid ? 3 : 0;
    if (((mode >> shift) & 1) === 0) return false;
    if (each === path.dirname(each)) return true;
  }
}

/** Where data meant for `dataDir` really lives: there, or outside (see above). Creates the folder. */
export function placeData(dataDir: string, account: Account | undefined): string {
  mkdirSync(dataDir, { recursive: true });
  if (canEnter(account, dataDir)) return dataDir;
  const outside = path.join(makeOutside(account), outsideName(dataDir));
  mkdirSync(outside, { recursive: true, mode: 0o755 });
  return outside;
}

/** Removes all that was kept for `dataDir`, inside and outside of the project. */
export function removeData(dataDir: string): void {
  rmSync(dataDir, { recursive: true, force: true });
  for (const base of outsideBases()) {
    rmSync(path.join(outsideRoot(base), outsideName(dataDir)), { recursive: true, force: true });
  }
}

/** A folder of root's that the account can enter, for what cannot stay inside the project. */
export function makeOutside(account: Account | undefined): string {
  const base = outsideBases().find((each) => canEnter(account, each));
  if (base === undefined) throw new Error(`${account?.name} can enter neither the project nor a temporary folder`);
  const folder = outsideRoot(base);
  mkdirSync(folder, { recursive: true });
  const { uid } = lstatSync(folder);
  // The parent is writable by everybody: a folder, or a link, that somebody else put there is not used.
  if (!lstatSync(folder).isDirectory() || uid !== process.getuid?.())
    throw new Error(`${folder} belongs to somebody else`);
  chmodSync(folder, 0o755);
  return folder;
}

/** /var/tmp first: it is kept when the machine restarts, and `npm start` keeps its data. */
function outsideBases(): readonly string[] {
  return [...new Set(['/var/tmp', tmpdir(), '/tmp'])].filter((folder) => existsSync(folder));
}

function outsideRoot(base: string): string {
  return path.join(base, `tributary-${shortHash(projectRoot)}`);
}

/** Mirrors the path inside the project, so that removing a folder removes what is kept for the folders in it. */
function outsideName(dataDir: string): string {
  const relative = path.relative(projectRoot, dataDir);
  const isInside = !relative.startsWith('..') && !path.isAbsolute(relative);
  return path.join('data', isInside ? relative : path.join('elsewhere', dataDir));
}

function shortHash(text: string): string {
  return createHash('sha256').update(text).digest('hex').slice(0, 12);
}

/** Hands a server's folder to the account, all of it when it belonged to another one before (a copied project does). */
export async function giveTo(account: Account | undefined, folder: string): Promise<void> {
  if (account === undefined) return;
  const isForeign = [folder, ...readdirSync(folder).map((entry) => path.join(folder, entry))].some(
    (entry) => lstatSync(entry).uid !== account.uid,
  );
  if (isForeign) await promisify(execFile)('chown', ['-R', '-h', `${account.uid}:${account.gid}`, '--', folder]);
}
