/** Owns the proof that the graph language says what it seems to say, and refuses what it does not know. */
import { describe, expect, it } from 'vitest';
import { parseScript } from './graph-dsl.ts';

describe('a script', () => {
  it('becomes acts in its order, one for each name of a list', () => {
    expect(parseScript('alice follows bob, carol; dave blocks erin\n frank mutes gina for 10 minutes')).toEqual([
      { kind: 'follow', who: 'alice', whom: 'bob' },
      { kind: 'follow', who: 'alice', whom: 'carol' },
      { kind: 'block', who: 'dave', whom: 'erin' },
      { kind: 'mute', who: 'frank', whom: 'gina', forMs: 600_000 },
    ]);
  });

  it('names posts and refers to them', () => {
    expect(
      parseScript('bob posts "hi; all" to followers as b1; carol reposts b1 as c1; dave replies to b1 "yes" to nobody'),
    ).toEqual([
      { kind: 'publish', who: 'bob', text: 'hi; all', visibility: 'followers', label: 'b1' },
      { kind: 'publish', who: 'carol', text: '', visibility: 'public', repostOf: 'b1', label: 'c1' },
      { kind: 'publish', who: 'dave', text: 'yes', visibility: 'private', replyTo: 'b1' },
    ]);
  });

  it('numbers posts made in one go', () => {
    expect(
      parseScript('bob posts 3 times as b; bob deletes b2').map((act) => ('label' in act ? act.label : '')),
    ).toEqual(['b1', 'b2', 'b3', 'b2']);
  });

  it('knows labels of earlier scripts', () => {
    expect(parseScript('bob edits b1 "new"', ['b1'])).toEqual([{ kind: 'edit', who: 'bob', label: 'b1', text: 'new' }]);
  });

  it.each([
    { script: 'bob likes b1', fault: 'not a sentence of the graph language: bob likes b1' },
    { script: 'bob follows', fault: 'not a sentence' },
    { script: 'bob follows carol dave', fault: 'not a sentence' },
    { script: 'bob posts "hi', fault: 'quotation mark is left open' },
    { script: 'bob posts "hi" to friends', fault: 'not a sentence' },
    { script: 'carol reposts b1', fault: 'no post is called b1: carol reposts b1' },
    { script: 'moderation hides b1', fault: 'no post is called b1' },
    { script: 'bob posts "a" as b1; bob posts "b" as b1', fault: 'two posts are called b1' },
    { script: 'frank mutes gina for 3 fortnights', fault: 'not a sentence' },
  ])('is refused with its fault: $script', ({ script, fault }) => expect(() => parseScript(script)).toThrow(fault));
});
