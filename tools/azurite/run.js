// Runs Azurite's table service in memory on a free loopback port, for one
// parent process. It prints "port N" once it listens, and ends when its standard
// input does: whatever becomes of the parent, nothing is left behind.
'use strict';

const { Server } = require('node:net');

// Azurite prints the port that it was asked for, which is 0.
const emit = Server.prototype.emit;
Server.prototype.emit = function (event, ...args) {
  if (event === 'listening') {
    process.stdout.write(`port ${this.address().port}\n`);
  }
  return emit.call(this, event, ...args);
};

// Azure limits what it stores of an entity to 1 MiB. Azurite holds updates, and
// not inserts, to 1 MiB of JSON, in which binary data takes a third more. The
// rows that are tested with keep Azure's limit by themselves.
const limits = require('azurite/dist/src/table/utils/constants');
limits.ENTITY_SIZE_MAX = limits.BODY_SIZE_MAX;

process.stdin.resume();
process.stdin.on('end', () => process.exit(0));

process.argv.push(
  '--inMemoryPersistence', '--tableHost', '127.0.0.1', '--tablePort', '0', '--silent', '--disableTelemetry',
);
require('azurite/dist/src/table/main.js');
