package pebblestore

// WithMemTable returns the options with memtables of that size.
func (o Options) WithMemTable(bytes uint64) Options {
	o.memTable = bytes
	return o
}
