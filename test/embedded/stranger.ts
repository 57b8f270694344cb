// Owns nothing: a process that has nothing to do with any server, and must still run when a test is over.

process.on('message', () => undefined);
process.send?.('running');
