/** Owns the promises of Twip: a graph and operations as they were published, the same for all, and a check of correctness that no wrong contender passes. */
import { describe, expect, it } from 'vitest';
import { pulledByRule } from '../../load/bench/pull-rule.ts';
import { askFor, type TwipContender, verifyShown } from '../../load/bench/twip-contender.ts';
import { followeesOf, makeTwipGraph } from '../../load/bench/twip-graph.ts';
import { planTwip, readText, type TwipRun, textOf } from '../../load/bench/twip-operations.ts';
import { createSeeded } from '../../src/sample/seeded.ts';

const SIGNAL = new AbortController().signal;

function planOf(users: number) {
  const random = createSeeded(14);
  const graph = makeTwipGraph(users, random);
  return { graph, run: planTwip(graph, random) };
}

describe('the graph', () => {
  const graph = makeTwipGraph(2_000, createSeeded(1));

  it('has 20 to 200 follows for each user, none of them twice and none of oneself', () => {
    for (let user = 0; user < graph.users; user += 1) {
      const followees = followeesOf(graph, user);
      expect(followees.length).toBeGreaterThanOrEqual(20);
      expect(followees.length).toBeLessThanOrEqual(200);
      expect(new Set(followees).size).toBe(followees.length);
      expect(followees).not.toContain(user);
    }
    expect(graph.followees.length / graph.users).toBeCloseTo(110, -1);
  });

  it('is flattened until the largest author would have at most a quarter of the users, by the steps of the rule', () => {
    const steps = Math.log(graph.shape / 55) / Math.log(0.7);
    expect(steps).toBeGreaterThan(0.5);
    expect(steps).toBeCloseTo(Math.round(steps), 6);
    const meanOf = (shape: number): number =>
      Array.from({ length: graph.users }, (_, index) => ((index + 1) / graph.users) ** shape).reduce((a, b) => a + b) /
      graph.users;
    expect(100 / meanOf(graph.shape)).toBeLessThanOrEqual(graph.users / 4);
    expect(100 / meanOf(graph.shape / 0.7)).toBeGreaterThan(graph.users / 4);
  });

  it('has everybody post by how many follow them', () => {
    graph.postWeights.forEach((weight, user) => {
      const followers = graph.followerCounts[user] as number;
      if (followers < 10) expect(weight).toBe(followers === 0 ? 0 : 0.1);
      else {
        expect(weight).toBeGreaterThanOrEqual(1);
        expect(weight).toBeLessThanOrEqual(Math.floor(2 * Math.log10(followers)));
      }
    });
    expect(graph.followerCounts.reduce((sum, count) => sum + count, 0)).toBe(graph.followees.length);
  });

  it('is the same for the same seed', () => {
    expect(makeTwipGraph(100, createSeeded(3))).toEqual(makeTwipGraph(100, createSeeded(3)));
    expect(makeTwipGraph(100, createSeeded(3))).not.toEqual(makeTwipGraph(100, createSeeded(4)));
  });
});

describe('the operations', () => {
  const { run } = planOf(500);
  const count = (kind: string): number => run.operations.filter((operation) => operation.kind === kind).length;

  it('are 50 checks for each active user, going round them, and others by their weight', () => {
    expect(run.activeUsers / 500).toBeCloseTo(0.7, 1);
    expect(count('check')).toBe(50 * run.activeUsers);
    const users = run.operations.filter(({ kind }) => kind === 'check').map(({ user }) => user);
    expect(new Set(users.slice(0, run.activeUsers)).size).toBe(run.activeUsers);
    expect(users.slice(run.activeUsers, 2 * run.activeUsers)).toEqual(users.slice(0, run.activeUsers));
    expect(count('subscribe') / count('check')).toBeCloseTo(0.1, 1);
    expect(run.logouts / count('check')).toBeCloseTo(0.05, 1);
    expect(count('post') / count('check')).toBeGreaterThan(0.007);
    expect(count('post') / count('check')).toBeLessThan(0.013);
  });

  it('have every check begin where the last one of its user ended, or anew after a logout', () => {
    const last = new Map<number, number>();
    let anew = 0;
    for (const operation of run.operations) {
      if (operation.kind !== 'check') continue;
      const { user, since, tick } = operation;
      if (since === 0) anew += last.has(user) ? 1 : 0;
      else expect(since).toBe(last.get(user));
      last.set(user, tick);
    }
    expect(anew).toBeGreaterThan(0);
    expect(anew).toBeLessThanOrEqual(run.logouts);
  });

  it('name a post in its text, and nothing else is taken for one', () => {
    expect(readText(textOf(17, 4))).toEqual({ tick: 17, author: 4 });
    expect(() => readText(textOf(17, 4).slice(0, -1))).toThrow('not the text of a post');
  });
});

/** The simplest thing that is right: all posts and follows in memory. */
function inMemory(run: TwipRun, followees: (user: number) => Iterable<number>) {
  const posts: { readonly tick: number; readonly user: number; readonly text: string }[] = [];
  const followed = new Map<number, Set<number>>();
  const follows = (user: number): Set<number> => {
    const those = followed.get(user) ?? new Set(followees(user));
    followed.set(user, those);
    return those;
  };
  const contender: TwipContender = {
    name: 'in memory',
    post: async (post) => void posts.push(post),
    subscribe: async ({ user, to }) => void follows(user).add(to),
    check: async ({ user, since, tick }) =>
      posts
        .filter((post) => follows(user).has(post.user) && post.tick >= since && post.tick < tick)
        .map(({ text }) => text),
  };
  return { contender, run };
}

describe('the check of correctness', () => {
  const { graph, run } = planOf(60);
  const make = () => inMemory(run, (user) => followeesOf(graph, user)).contender;

  async function verdictOn(contender: TwipContender): Promise<void> {
    await askFor(contender, run.operations, SIGNAL);
    await verifyShown(contender, run, SIGNAL);
  }

  it('passes one that is right', async () => {
    await verdictOn(make());
    expect(run.loggedIn.length).toBeGreaterThan(10);
  });

  it('counts all that was shown, however many checks are under way', async () => {
    let shown = 0;
    const right = make();
    const check: TwipContender['check'] = async (of) => {
      const texts = await right.check(of);
      await new Promise((resolve) => setImmediate(resolve));
      shown += texts.length;
      return texts;
    };
    expect(await askFor({ ...right, check }, run.operations, SIGNAL)).toEqual({ shown });
    expect(shown).toBeGreaterThan(100);
  });

  it('fails one that forgets a subscription', async () => {
    await expect(verdictOn({ ...make(), subscribe: async () => undefined })).rejects.toThrow(/lacks [1-9]/);
  });

  it('fails one that shows what nobody asked for', async () => {
    const right = make();
    const stranger = textOf(run.ticks, graph.users + 1);
    const check: TwipContender['check'] = async (of) => [...(await right.check(of)), stranger];
    await expect(verdictOn({ ...right, check })).rejects.toThrow(/has 1 too many/);
  });

  it('fails one that shows a post twice', async () => {
    const right = make();
    const check: TwipContender['check'] = async (of) => {
      const shown = await right.check(of);
      return [...shown, ...shown.slice(0, 1)];
    };
    await expect(verdictOn({ ...right, check })).rejects.toThrow(/1 twice/);
  });

  it('fails one that cuts a text', async () => {
    const right = make();
    const check: TwipContender['check'] = async (of) => (await right.check(of)).map((text) => text.trimEnd().slice(1));
    await expect(verdictOn({ ...right, check })).rejects.toThrow('not the text of a post');
  });

  it('ends with the error of an operation that failed, after those under way', async () => {
    const post = (): Promise<void> => Promise.reject(new Error('no such table'));
    await expect(verdictOn({ ...make(), post })).rejects.toThrow('no such table');
  });
});

describe('operations of one user', () => {
  it('are asked for in their order, those of others beside them', async () => {
    const ended: string[] = [];
    const first = Promise.withResolvers<void>();
    const contender: TwipContender = {
      name: 'slow',
      async post({ tick }) {
        await first.promise;
        ended.push(`post ${tick}`);
      },
      async subscribe({ tick }: { readonly user: number; readonly to: number; readonly tick?: number }) {
        ended.push(`subscribe ${tick}`);
      },
      async check({ tick }) {
        ended.push(`check ${tick}`);
        if (tick === 3) first.resolve();
        return [];
      },
    };
    await askFor(
      contender,
      [
        { kind: 'post', tick: 1, user: 1 },
        { kind: 'subscribe', tick: 2, user: 2, to: 1 },
        { kind: 'check', tick: 3, user: 3, since: 0 },
        { kind: 'check', tick: 4, user: 2, since: 0 },
      ],
      SIGNAL,
    );
    expect(ended).toEqual(['check 3', 'post 1', 'subscribe 2', 'check 4']);
  });
});

describe('the rule of costs', () => {
  const { graph } = planOf(200);

  it('pushes everybody where people read much more than they post', () => {
    expect(pulledByRule(graph, { posts: 100, checksEach: 50 }).size).toBe(0);
  });

  it('pulls those who post more than they are read', () => {
    const pulled = pulledByRule(graph, { posts: 20_000, checksEach: 50 });
    expect(pulled.size).toBeGreaterThan(0);
    expect(pulled.size).toBeLessThan(graph.users);
    const least = Math.min(...[...pulled].map((user) => graph.postWeights[user] as number));
    graph.postWeights.forEach((weight, user) => {
      if (!pulled.has(user)) expect(weight).toBeLessThan(least);
    });
  });
});
