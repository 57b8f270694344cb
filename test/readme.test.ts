/**
 * Owns the promise that README is true: links lead somewhere, every guarantee names a test that is there, and what can be configured,
 * counted or refused is all documented. Reads the sources as text, so that a word in README cannot outlive what it describes.
 */
import { existsSync, globSync, readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { REASONS } from '../src/errors.ts';
import { codeOf } from '../src/rpc/errors-to-wire.ts';
import { configVariables } from './config-variables.ts';
import { ownMetrics } from './metrics/catalogue.ts';

const ROOT = path.resolve(import.meta.dirname, '..');
const readme = read('README.md');

interface Link {
  readonly text: string;
  readonly target: string;
}

function read(file: string): string {
  return readFileSync(path.join(ROOT, file), 'utf8');
}

/** The text under a heading, up to the next of its level or above. */
function section(heading: string): string {
  const level = /^#+/.exec(heading)?.[0].length ?? 0;
  const [, after] = readme.split(`\n${heading}\n`);
  if (after === undefined) throw new Error(`README has no section "${heading}"`);
  return after.split(new RegExp(`\\n#{1,${level}} `))[0] ?? '';
}

/** Cells of the table rows of a text, header and rule left out. */
function rowsOf(text: string): readonly (readonly string[])[] {
  const rows = text
    .split('\n')
    .filter((line) => line.startsWith('|'))
    .map((line) =>
      line
        .slice(1, -1)
        .split('|')
        .map((cell) => cell.trim()),
    );
  return rows.slice(2);
}

function linksIn(text: string): readonly Link[] {
  return [...text.matchAll(/\[([^\]]*)\]\(([^)\s]+)\)/g)].map(([, label = '', target = '']) => ({
    text: label,
    target,
  }));
}

/** As GitHub makes them from headings. */
function anchorsOf(markdown: string): readonly string[] {
  return [...markdown.matchAll(/^#+ (.+)$/gm)].map(([, heading = '']) =>
    heading
      .toLowerCase()
      .replace(/[^\p{L}\p{N}\- ]/gu, '')
      .replaceAll(' ', '-'),
  );
}

function code(cell: string | undefined): string {
  return /^`([^`]*)`$/.exec(cell ?? '')?.[1] ?? '';
}

/** A number with separators of thousands, as a number. */
function numberIn(text: string): number {
  return Number(text.replaceAll(',', ''));
}

describe('README', () => {
  it('has its sections in the order in which a stranger needs them', () => {
    expect([...readme.matchAll(/^## (.+)$/gm)].map(([, title]) => title)).toEqual([
      'What it guarantees',
      'Two commands',
      'How it works',
      'API',
      'Configuration',
      'Measures',
      'When things fail',
      'Load',
      'Load results',
      'Growing',
      'Decisions',
      'What we deliberately do not build',
      'Working on it',
    ]);
  });

  it.each(linksIn(readme))('leads somewhere: [$text]($target)', ({ target }) => {
    const [file = '', anchor] = target.split('#');
    expect(target).not.toMatch(/^[a-z]+:/);
    expect(existsSync(path.join(ROOT, file)), target).toBe(true);
    if (anchor !== undefined) expect(anchorsOf(file === '' ? readme : read(file))).toContain(anchor);
  });

  it('shows both commands, which are scripts of the project, and no script that is not there', () => {
    const { scripts } = JSON.parse(read('package.json')) as { scripts: Record<string, string> };
    const [shown = ''] = /```sh\n[\s\S]*?```/.exec(section('## Two commands')) ?? [];
    expect(shown).toMatch(/^npm start\b/m);
    expect(shown).toMatch(/^npm test\b/m);
    for (const [, name = ''] of readme.matchAll(/\bnpm run ([a-z]+)/g)) expect(Object.keys(scripts)).toContain(name);
  });
});

describe('guarantees', () => {
  const rows = rowsOf(section('## What it guarantees'));

  it('are many, one row each', () => {
    expect(rows.length).toBeGreaterThan(15);
    expect(new Set(rows.map(([situation]) => situation)).size).toBe(rows.length);
  });

  it.each(rows.map(([situation = '', , test = '']) => ({ situation, test })))(
    '$situation: has its test',
    ({ test }) => {
      const [link, ...more] = linksIn(test);
      expect(more).toEqual([]);
      if (link === undefined) throw new Error(`no link in ${test}`);
      expect(link.target).toMatch(/\.test\.ts$/);
      expect(namesIn(link.target)).toContain(link.text);
    },
  );

  /** Names of the tests of a file, as the source spells them. */
  function namesIn(file: string): readonly string[] {
    return [
      ...read(file).matchAll(/\b(?:it|test)(?:\.(?:each|runIf)\([\s\S]*?\))?\(\s*(['"`])((?:\\.|(?!\1).)*)\1/g),
    ].map(([, , name = '']) => name.replace(/\\(.)/g, '$1'));
  }
});

describe('configuration', () => {
  const rows = rowsOf(section('## Configuration'));

  it('has a row for every variable, and none for others', () => {
    const known = configVariables().map((variable) => variable.name);
    expect(known.length).toBeGreaterThan(20);
    expect(rows.map(([name]) => code(name)).sort()).toEqual([...known].sort());
  });

  it.each(configVariables())('$name has its default and its bounds', ({ name, preset, min, max }) => {
    const [, shown, bounds = ''] = rows.find(([cell]) => code(cell) === name) ?? [];
    if (preset === undefined) expect(shown).toBe('must be set');
    else expect(code(shown)).toBe(preset);
    if (min === undefined) return;
    expect(bounds.split('–').map(numberIn)).toEqual([min, max]);
  });
});

describe('errors', () => {
  const rows = rowsOf(section('### Errors'));

  it('has a row for every reason, with its status, in the order of the source', () => {
    expect(rows.map(([reason, status]) => [code(reason), status])).toEqual(
      REASONS.map((reason) => [reason, codeOf(reason)]),
    );
  });

  it('says of every reason when it comes and whether to retry', () => {
    for (const [reason, , when, retry] of rows) expect([when, retry], reason).not.toContain('');
  });
});

describe('API', () => {
  const calls = globSync('proto/tributary/v1/*.proto', { cwd: ROOT }).flatMap((file) =>
    [...read(file).matchAll(/^ {2}rpc (\w+)\(/gm)].map(([, name = '']) => name),
  );

  it('has every call in its table, and no other', () => {
    const shown = rowsOf(section('## API').split('### Errors')[0] ?? '').flatMap(([cell = '']) =>
      [...cell.matchAll(/`(\w+)`/g)].map(([, name = '']) => name).filter((name) => !name.endsWith('Service')),
    );
    expect([...shown].sort()).toEqual([...calls].sort());
  });
});

describe('measures', () => {
  it('has every metric in its table, with its labels, and no other', async () => {
    const wanted = (await ownMetrics()).map(({ name, labels }) => [name, labels.join(', ')]);
    expect(wanted.length).toBeGreaterThan(30);
    const rows = rowsOf(section('## Measures').split('### ')[0] ?? '');
    const shown = rows.map(([name, labels = '']) => [code(name), labels.replaceAll('`', '')]);
    expect(shown.sort()).toEqual(wanted.sort());
  });

  it('speaks of no metric that is not there', async () => {
    const names = (await ownMetrics()).map(({ name }) => name);
    for (const [, name = ''] of readme.matchAll(/\b(tributary_[a-z_]*[a-z])\b/g)) expect(names).toContain(name);
  });
});

describe('load', () => {
  const rows = rowsOf(section('## Load'));
  /** Settings as the source reads them, with their defaults; one that depends on something is none here. */
  const settings = new Map(
    [...read('load/k6/settings.ts').matchAll(/\w+From\(\s*'(LOAD_\w+)',\s*(?:'([^']*)'|\w+|`[^`]*`)/g)].map(
      ([, name = '', preset]) => [name, preset],
    ),
  );

  it('has a row for every setting of the k6 scripts, with its default, and none for others', () => {
    expect(settings.size).toBeGreaterThan(15);
    const shown = rows.filter(([name]) => code(name).startsWith('LOAD_'));
    expect(shown.map(([name]) => code(name)).sort()).toEqual([...settings.keys()].sort());
    for (const [name, cell] of shown) {
      const preset = settings.get(code(name));
      if (preset === undefined) expect(cell, name).toMatch(/^by /);
      else expect(cell, name).toBe(preset === '' ? 'must be set' : `\`${preset}\``);
    }
  });

  it('has a row for every script, with its rate and duration', () => {
    const scripts = globSync('load/k6/*.ts', { cwd: ROOT }).flatMap((file) => {
      const [, rate, duration] = /settingsFrom\(\{ rate: (\d+), duration: '(\w+)' \}\)/.exec(read(file)) ?? [];
      return rate === undefined ? [] : [[file, `\`${rate}\`, \`${duration}\``]];
    });
    expect(scripts.length).toBeGreaterThan(4);
    const shown = rows.flatMap(([cell = '', presets = '']) => linksIn(cell).map(({ target }) => [target, presets]));
    expect(shown.toSorted()).toEqual(scripts.toSorted());
  });

  it('names files and settings that are there', () => {
    const text = section('## Load');
    for (const [file] of text.matchAll(/load\/[a-z0-9]+\/[\w-]+\.\w+/g))
      expect(existsSync(path.join(ROOT, file)), file).toBe(true);
    for (const [name] of text.matchAll(/LOAD_[A-Z0-9_]+/g)) expect([...settings.keys()]).toContain(name);
  });
});

describe('load results', () => {
  const text = section('## Load results');

  it('come with machine, commit and command, and name benchmarks that are there', () => {
    expect(text).toMatch(/\d+ cores/);
    expect(text).toMatch(/commit `[0-9a-f]{7,}`/);
    const commands = [...text.matchAll(/npm run bench -- (\w+)/g)].map(([, name = '']) => name);
    expect(commands.length).toBeGreaterThan(0);
    for (const name of commands) expect(statSync(path.join(ROOT, `load/bench/${name}.ts`)).isFile()).toBe(true);
  });
});
