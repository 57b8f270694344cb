/** Owns the measures of authors' classes: who is pulled, who changes and why, what is given back on the way down. */
import { Counter, Gauge, Histogram, type Registry } from 'prom-client';
import type { FanoutClass } from '../timeline/fanout-class.ts';

export interface ClassMetrics {
  classChanged(change: {
    readonly from: FanoutClass;
    readonly to: FanoutClass;
    readonly cause: 'followers' | 'slow_fanout' | 'settled';
  }): void;
  /** Authors that are not of class `push`, as the relay last saw them. */
  authorsCounted(authors: { readonly both: number; readonly pull: number }): void;
  /** One page of followers on the way down; `viewers`: resident ones. */
  classBackfilled(page: { readonly viewers: number; readonly entries: number; readonly seconds: number }): void;
  /** A publish was answered before the post was in its author's list. */
  listPending(): void;
}

/** From a page on which nobody is resident to one on which everybody lacks a whole list. */
const PAGE_SECONDS = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30];

export function classMetrics(registry: Registry): ClassMetrics {
  const registers = [registry];
  const changes = new Counter({
    name: 'tributary_author_class_changes_total',
    help: 'Changes of class of authors, by class before and after, and cause (followers, slow_fanout, settled).',
    labelNames: ['from', 'to', 'cause'],
    registers,
  });
  // Zero from the start: a series that begins with its first change shows no rise.
  changes.inc({ from: 'push', to: 'both', cause: 'slow_fanout' }, 0);
  const authors = new Gauge({
    name: 'tributary_authors_by_class',
    help: 'Authors whose posts are pulled (pull), or pushed and pulled (both), as the relay last saw them.',
    labelNames: ['class'],
    registers,
  });
  const pages = new Histogram({
    name: 'tributary_class_backfill_seconds',
    help: "Time to give an author's posts back to the timelines of one page of followers, on the way from pulling to pushing.",
    buckets: PAGE_SECONDS,
    registers,
  });
  const given = new Counter({
    name: 'tributary_class_backfilled_total',
    help: 'Resident followers (viewers) that were given posts on the way from pulling to pushing, and the entries.',
    labelNames: ['what'],
    registers,
  });
  const pending = new Counter({
    name: 'tributary_pulled_list_pending_total',
    help: "Publishes answered before the post was in its author's list.",
    registers,
  });
  return {
    classChanged: ({ from, to, cause }) => changes.inc({ from, to, cause }),
    authorsCounted(counted) {
      authors.set({ class: 'both' }, counted.both);
      authors.set({ class: 'pull' }, counted.pull);
    },
    classBackfilled({ viewers, entries, seconds }) {
      pages.observe(seconds);
      given.inc({ what: 'viewers' }, viewers);
      given.inc({ what: 'entries' }, entries);
    },
    listPending: () => pending.inc(),
  };
}
