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
//	wait for the sync, which all writes of the moment share
//	acknowledge
//
// A stripe stands for the partitions that hash to it, so writers of different
// partitions rarely wait for each other, and nobody holds a lock while the
// disk works. Every acknowledged commit has been synced; there is no option to
// do without.
//
// # Nothing is told before it is durable
//
// What is in memory can be seen before it is synced. A read therefore looks up
// the last write announced on its stripe after it has read, and waits until
// that is durable; conflicts do the same. The log is written in order, so an
// earlier write of the stripe is durable then as well. Where nothing is
// pending, which is nearly always, a read waits for nothing.
//
// # Failures
//
// After a failed write or sync nobody knows what the disk holds. The store then
// fails for good: commits under way answer [tablestore.ErrUnknown], everything
// later [tablestore.ErrUnavailable], and nothing more reaches the disk until
// the directory is opened again, which finds every acknowledged commit. A full
// disk should not lead there: below a reserve of free space commits are refused
// and go on by themselves once there is space.
//
// # Queues
//
// Rows that are added at one end of a partition and removed at the other leave
// their tombstones at the head, where the next scan begins. The store remembers
// where the live rows begin: a scan behind 100,000 removed rows takes about as
// long as one of an empty partition, microseconds instead of milliseconds.
//
// # Layout
//
// A row is stored under table \x00 partition \x00 row; its value is a version
// byte, the ETag and the properties in the encoding of package tablestore. An
// ETag is the number of times that the directory was opened and a count.
package pebblestore
