/** Owns what tests of documents and deployments know of the configuration: its variables, as the source spells them. */
import { readFileSync } from 'node:fs';
import path from 'node:path';

export interface ConfigVariable {
  readonly name: string;
  /** As the source has it, without separators of thousands; `none` where the variable may be left out, undefined where it must be set. */
  readonly preset: string | undefined;
  readonly min: number | undefined;
  readonly max: number | undefined;
}

const SOURCE = path.resolve(import.meta.dirname, '../src/config.ts');
const PORT = { min: 0, max: 65_535 };

/** Reads the source text: the schema itself is nobody's business but the configuration's. */
export function configVariables(): readonly ConfigVariable[] {
  const source = readFileSync(SOURCE, 'utf8');
  const body = /z\.object\(\{\n([\s\S]*?)\n\}\)/.exec(source)?.[1];
  if (body === undefined) throw new Error('the schema of the configuration was not found');
  return [...body.matchAll(/^ {2}([A-Z_]+): (.+),$/gm)].map(([, name = '', rule = '']) => {
    const bounded = /^(?:count|milliseconds)\((.+)\)$/.exec(rule)?.[1]?.split(',').map(evaluate);
    if (bounded) return { name, preset: String(bounded[2]), min: bounded[0], max: bounded[1] };
    if (rule.endsWith('.optional()')) return { name, preset: 'none', min: undefined, max: undefined };
    const preset = /\.default\('?([^')]+)'?\)/.exec(rule)?.[1]?.replaceAll('_', '');
    return { name, preset, min: undefined, max: undefined, ...(rule.startsWith('port') && PORT) };
  });
}

/** Products of whole numbers, which is all that the source has. */
function evaluate(text: string): number {
  return text.split('*').reduce((product, factor) => product * Number(factor.trim().replaceAll('_', '')), 1);
}
