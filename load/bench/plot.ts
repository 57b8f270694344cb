/**
 * Owns the drawing of a sweep as SVG: one line a series, axes with round numbers, a legend. Pure; the same sweep is the same text.
 * Invariant: readable on light and dark pages alike, since it brings its own background.
 */
import type { Sweep } from './result.ts';

const WIDTH = 720;
const HEIGHT = 420;
const PLOT = { left: 70, right: 700, top: 50, bottom: 340 } as const;
/** Distinguished by people who do not see red and green apart (Okabe and Ito). */
const COLOURS = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9'] as const;
const TICKS_ABOUT = 5;
const LEGEND_ROW = 24;
const TITLE_FROM_TOP = 28;

interface Axis {
  /** From a value to 0…1. */
  readonly at: (value: number) => number;
  readonly ticks: readonly number[];
}

export function plotOf({ title, x, y, series }: Sweep): string {
  const values = series.flatMap((each) => each.values);
  if (x.values.length === 0 || values.length === 0) throw new RangeError('there is nothing to draw');
  const xAxis = axisOf(x.values, x.isLogarithmic === true, false);
  const yAxis = axisOf(values, y.isLogarithmic === true, true);
  const across = (value: number): string => fixed(PLOT.left + xAxis.at(value) * (PLOT.right - PLOT.left));
  const up = (value: number): string => fixed(PLOT.bottom - yAxis.at(value) * (PLOT.bottom - PLOT.top));
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="sans-serif" font-size="13" fill="#222">`,
    `<title>${escaped(title)}</title>`,
    `<rect width="${WIDTH}" height="${HEIGHT}" fill="#fff"/>`,
    `<text x="${PLOT.left}" y="${TITLE_FROM_TOP}" font-size="15" font-weight="bold">${escaped(title)}</text>`,
  ];
  for (const tick of yAxis.ticks) {
    parts.push(
      `<line x1="${PLOT.left}" x2="${PLOT.right}" y1="${up(tick)}" y2="${up(tick)}" stroke="#ddd"/>`,
      `<text x="${PLOT.left - 8}" y="${up(tick)}" dy="0.35em" text-anchor="end">${numberText(tick)}</text>`,
    );
  }
  for (const tick of xAxis.ticks) {
    parts.push(
      `<line x1="${across(tick)}" x2="${across(tick)}" y1="${PLOT.bottom}" y2="${PLOT.bottom + 5}" stroke="#222"/>`,
      `<text x="${across(tick)}" y="${PLOT.bottom + 20}" text-anchor="middle">${numberText(tick)}</text>`,
    );
  }
  parts.push(
    `<line x1="${PLOT.left}" x2="${PLOT.right}" y1="${PLOT.bottom}" y2="${PLOT.bottom}" stroke="#222"/>`,
    `<text x="${PLOT.right}" y="${PLOT.bottom + 38}" text-anchor="end">${escaped(x.label)}</text>`,
    `<text x="${PLOT.left - 8}" y="${PLOT.top - 8}" text-anchor="start">${escaped(y.label)}</text>`,
  );
  const step = (PLOT.right - PLOT.left) / series.length;
  series.forEach(({ name, values: own }, index) => {
    const colour = COLOURS[index % COLOURS.length];
    const points = own.map((value, at) => `${across(x.values[at] ?? 0)},${up(value)}`);
    const legendX = fixed(PLOT.left + index * step);
    const legendY = HEIGHT - LEGEND_ROW;
    parts.push(
      `<polyline points="${points.join(' ')}" fill="none" stroke="${colour}" stroke-width="2"/>`,
      ...points.map((point) => {
        const [cx, cy] = point.split(',');
        return `<circle cx="${cx}" cy="${cy}" r="3" fill="${colour}"/>`;
      }),
      `<rect x="${legendX}" y="${legendY}" width="14" height="4" fill="${colour}"/>`,
      `<text x="${legendX}" dx="20" y="${legendY + 6}">${escaped(name)}</text>`,
    );
  });
  return `${[...parts, '</svg>'].join('\n')}\n`;
}

/** `fromZero`: of a linear axis, whose heights mean nothing otherwise. */
function axisOf(values: readonly number[], isLogarithmic: boolean, fromZero: boolean): Axis {
  const lowest = Math.min(...values);
  const highest = Math.max(...values);
  if (isLogarithmic && lowest > 0) {
    const low = Math.floor(Math.log10(lowest));
    const high = Math.max(low + 1, Math.ceil(Math.log10(highest)));
    const ticks = Array.from({ length: high - low + 1 }, (_, index) => 10 ** (low + index));
    return { at: (value) => (Math.log10(value) - low) / (high - low), ticks };
  }
  const from = fromZero ? Math.min(0, lowest) : lowest;
  const step = roundStep((highest - from || 1) / TICKS_ABOUT);
  const start = Math.floor(from / step) * step;
  const end = Math.max(start + step, Math.ceil(highest / step) * step);
  const count = Math.round((end - start) / step);
  return {
    at: (value) => (value - start) / (end - start),
    ticks: Array.from({ length: count + 1 }, (_, index) => start + index * step),
  };
}

/** 1, 2 or 5 times a power of ten, at least as large. */
function roundStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  return (([1, 2, 5] as const).find((factor) => factor * power >= least * (1 - 1e-9)) ?? 10) * power;
}

function numberText(value: number): string {
  return Number(value.toPrecision(6)).toLocaleString('en-US', { maximumFractionDigits: 6 });
}

function fixed(value: number): string {
  return value.toFixed(1);
}

function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');
}
