// Package pebblestore is the durable table store of a single process, in a
// directory on a local disk, on top of the storage engine Pebble.
//
// # A commit
//
//	lock the stripes of the partitions, in order
//	  │ check the preconditions against memory and disk
//	  │ announce the write as the stripes' last        ── readers: see below
//	  │ apply it to memory and append it to the log
//	unlock the stripes                                 ── the next writer goes on
//	tell the caller's own process the new versions     ── which may build on them
//	wait for the sync, which all writes of the moment share
//	acknowledge
//
// A precondition of a partition that was empty before its first write is checked
// without a read: its stripe knows the versions of all its rows.
//
// Partitions hash to stripes, so writers of different partitions rarely wait
// for each other, and no writer holds a lock during disk I/O. Every
// acknowledged commit has been synced; no option turns that off.
//
// # Reads return only durable rows
//
// A row in memory is visible before it is synced. After reading, a read
// therefore looks up the last write announced on its stripe and waits until it
// is durable; so does a write that conflicts. The log is written in order, so
// all earlier writes of the stripe are durable then as well. A read does not
// wait if no write is pending, which is nearly always the case.
//
// # Failures
//
// After a failed write or sync, the content of the disk is unknown. The store then ends the
// process: nothing more is acknowledged or written until the directory is opened again, which
// finds every acknowledged commit. A full disk normally does not get that far: below a reserve
// of free space the store refuses commits, and accepts them again once there is space. Commits
// that free space may use most of the reserve, so that a retention can go on.
//
// # The directory
//
// Open files outlive their names. If its directory is removed, moved or replaced, a store could
// acknowledge writes that the next start does not find, and make and remove files in the
// directory that is now at its path. The store therefore checks that the path still leads to the
// lock file that it holds: after each sync of the log, before the writes that share the sync are
// acknowledged, together with the log file itself; before it makes, renames or removes a file;
// and once a second. If the check fails, it ends the process.
//
// The engine treats a directory without manifest marker as empty and deletes unknown files in
// it, and takes a manifest or log that was cut short for one that a crash interrupted. A file
// STATE therefore says what happens to the directory: a store is created in it, is restored
// into it, has it open or crashed, or has closed it. It lists the manifest as it was last synced
// or, after an orderly stop, every file, with its size and, except for tables, its checksum. A
// start compares the directory with the list before the engine changes anything.
//
// # Backups
//
// A backup is a checkpoint of the engine in the directory BACKUP: links to the tables, and
// copies of the logs up to where they were written. It has the state of an orderly stop. A
// restore unpacks it into the directory RESTORE, checks it, and moves the files to their place,
// the state last: until then a start is refused. A start removes what a crash left of a backup.
//
// # Queues
//
// Rows that are added at one end of a partition and removed at the other leave
// tombstones at the head, where the next scan begins. The store remembers where
// the live rows begin: a scan past 100,000 tombstones takes about as long as a
// scan of an empty partition, microseconds instead of milliseconds.
//
// # Layout
//
// A row is stored under table \x00 partition \x00 row; its value is a version
// byte, the ETag and the properties in the encoding of package tablestore. The
// row under \x00h holds how often the directory was opened, when it was made, and
// the names of properties, which rows have as numbers: a batch that brings a name also
// writes this row, and only batches that follow it in the log use the number. An ETag is
// the number of times that the directory was opened, and a count of writes since then.
package pebblestore
