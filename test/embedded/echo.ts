// Owns nothing: prints its arguments, and ends with the last one as its exit code.

const args = process.argv.slice(2);
console.log(JSON.stringify(args));
process.exitCode = Number(args.at(-1));
