/**
 * Owns what `npm start` keeps beside the servers' data: the secrets of this machine, and the note that the sample is complete.
 *
 * Invariants: the note is written last, in one step, so a folder without one holds half a sample at most and is thrown away whole;
 * nothing is ever thrown away that this project did not put there; secrets are readable by their owner alone.
 */
import { randomBytes } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import path from 'node:path';

/** Rises when the sample is made in another way, so that older folders are made anew. */
const FORMAT = 1;
const NOTE_FILE = 'sample.json';
const TOKEN_KEYS_FILE = 'page-token-keys';
const OWN_NAMES = /^(postgres|cache|queue|lock(\..*|-journal|-wal|-shm)?|sample\.json(\.new)?|page-token-keys)$/;
const TOKEN_KEY_BYTES = 32;

export interface SampleNote {
  readonly viewers: number;
  readonly seed: number;
  readonly tenant: string;
  readonly apiKey: string;
  /** Whose page is shown. */
  readonly viewer: string;
}

/** The note of a complete sample; undefined where there is none that this version can use. */
export function readNote(dataDir: string): SampleNote | undefined {
  try {
    const found: unknown = JSON.parse(readFileSync(path.join(dataDir, NOTE_FILE), 'utf8'));
    return isNote(found) ? found : undefined;
  } catch {
    return undefined;
  }
}

function isNote(found: unknown): found is SampleNote {
  const fields: Readonly<Record<string, unknown>> = { ...(found as object) };
  return (
    fields['format'] === FORMAT &&
    ['viewers', 'seed'].every((name) => typeof fields[name] === 'number') &&
    ['tenant', 'apiKey', 'viewer'].every((name) => typeof fields[name] === 'string')
  );
}

export function writeNote(dataDir: string, note: SampleNote): void {
  const file = path.join(dataDir, NOTE_FILE);
  writeFileSync(`${file}.new`, `${JSON.stringify({ format: FORMAT, ...note }, null, 2)}\n`, { mode: 0o600 });
  renameSync(`${file}.new`, file);
}

/** The keys that seal page tokens, as the configuration wants them; made at the first call. */
export function loadPageTokenKeys(dataDir: string): string {
  const file = path.join(dataDir, TOKEN_KEYS_FILE);
  if (existsSync(file)) return readFileSync(file, 'utf8').trim();
  const keys = randomBytes(TOKEN_KEY_BYTES).toString('base64');
  mkdirSync(dataDir, { recursive: true });
  writeFileSync(file, `${keys}\n`, { mode: 0o600 });
  return keys;
}

/** What lies in the folder that is not ours; a folder that is not there holds nothing. */
export function findForeign(dataDir: string): readonly string[] {
  if (!existsSync(dataDir)) return [];
  return readdirSync(dataDir).filter((name) => !OWN_NAMES.test(name));
}

export function holdsAnything(dataDir: string): boolean {
  return existsSync(dataDir) && readdirSync(dataDir).length > 0;
}
