package pebblestore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// divider separates the parts of a stored key. It cannot occur in a table name
// or key, and sorts before every byte that can.
const divider = 0

// rowVersion is the first byte of every stored row.
const rowVersion = 1

// layoutVersion is the version of the layout of keys and rows. It rises with [tablestore.RowFormat], too.
const layoutVersion = 6

// ErrLayout is wrapped in the error for a store with rows of another layout.
var ErrLayout = errors.New("the store is of another version")

// headerKey is the key of the header row. It sorts before every table.
var headerKey = []byte{divider, 'h'}

// header is the row that describes the store itself.
type header struct {
	epoch   uint64            // How often the store was opened for writing.
	created time.Time         // When it was made.
	names   *tablestore.Names // the names that rows store as numbers
}

func encodeHeader(h header) []byte {
	data := binary.AppendUvarint([]byte{layoutVersion}, h.epoch)
	data = binary.AppendUvarint(data, uint64(h.created.UnixMilli()))
	for _, name := range h.names.List() {
		data = binary.AppendUvarint(data, uint64(len(name)))
		data = append(data, name...)
	}
	return data
}

func decodeHeader(data []byte) (h header, err error) {
	if len(data) == 0 {
		return header{}, errors.New("malformed header")
	}
	if data[0] != layoutVersion {
		return header{}, fmt.Errorf("%w: its rows have layout %d, and this program reads %d: use the version that wrote them",
			ErrLayout, data[0], layoutVersion)
	}
	data = data[1:]
	number := func() (n uint64) {
		n, size := binary.Uvarint(data)
		if size <= 0 {
			err, size = errors.New("malformed header"), len(data)
		}
		data = data[size:]
		return n
	}
	h.epoch, h.created = number(), time.UnixMilli(int64(number()))
	var list []string
	for err == nil && len(data) > 0 {
		n := number()
		if n > uint64(len(data)) {
			return header{}, errors.New("malformed header")
		}
		list, data = append(list, string(data[:n])), data[n:]
	}
	if err == nil {
		if h.names, err = tablestore.NewNames(list); err != nil {
			err = fmt.Errorf("header: %w", err)
		}
	}
	return h, err
}

// appendPartition appends the prefix of all stored keys of a partition.
func appendPartition(dst []byte, table, partition string) []byte {
	dst = append(dst, table...)
	dst = append(dst, divider)
	dst = append(dst, partition...)
	return append(dst, divider)
}

// storedKey returns the key under which the row is stored:
// table \x00 partition \x00 row.
func storedKey(key tablestore.Key) []byte {
	return appendKey(make([]byte, 0, len(key.Table)+len(key.Partition)+len(key.Row)+2), key)
}

// appendKey appends [storedKey] to dst.
func appendKey(dst []byte, key tablestore.Key) []byte {
	return append(appendPartition(dst, key.Table, key.Partition), key.Row...)
}

// bounds returns the range of stored keys that holds the query's rows from
// start on.
func bounds(query tablestore.Query, start string) (lower, upper []byte) {
	prefix := appendPartition(nil, query.Table, query.Partition)
	lower = append(bytes.Clone(prefix), start...)
	return lower, append(prefix, end(query)...)
}

// end returns the exclusive upper bound of the query's row keys.
func end(query tablestore.Query) string {
	if query.To == "" {
		return partitionEnd
	}
	return min(query.To, partitionEnd)
}

// usualRowBytes is the approximate size of a row with its key.
const usualRowBytes = 1 << 10

// appendRow appends a row in its stored form: a version byte, the ETag preceded by its
// length, and the properties. spelled reports whether one of their names had no number.
func appendRow(dst []byte, etag tablestore.ETag, properties tablestore.Properties, names *tablestore.Names,
) (row []byte, spelled bool) {
	dst = append(dst, rowVersion)
	dst = binary.AppendUvarint(dst, uint64(len(etag)))
	dst = append(dst, etag...)
	return tablestore.EncodeProperties(dst, properties, names)
}

// splitRow returns the parts of a stored row, sharing its memory.
func splitRow(data []byte) (etag, properties []byte, err error) {
	if len(data) == 0 || data[0] != rowVersion {
		return nil, nil, fmt.Errorf("%w: unknown version of the row", tablestore.ErrCorrupt)
	}
	n, size := binary.Uvarint(data[1:])
	if size <= 0 || n > uint64(len(data)-1-size) {
		return nil, nil, fmt.Errorf("%w: malformed ETag", tablestore.ErrCorrupt)
	}
	rest := data[1+size:]
	return rest[:n], rest[n:], nil
}

// decodeRow decodes a stored row. The result shares no memory with data.
func decodeRow(key tablestore.Key, data []byte, names *tablestore.Names) (tablestore.Row, error) {
	etag, encoded, err := splitRow(data)
	if err != nil {
		return tablestore.Row{}, fmt.Errorf("row %s: %w", key, err)
	}
	properties, err := tablestore.DecodeProperties(encoded, names)
	if err != nil {
		return tablestore.Row{}, fmt.Errorf("row %s: %w", key, err)
	}
	return tablestore.Row{Key: key, ETag: tablestore.ETag(etag), Properties: properties}, nil
}

// formatETag returns the ETag of the count-th write since the directory was
// opened for the epoch-th time. No two writes share one, even across restarts.
func formatETag(epoch, count uint64) tablestore.ETag {
	dst := make([]byte, 0, 24)
	dst = strconv.AppendUint(dst, epoch, 16)
	dst = append(dst, '.')
	return tablestore.ETag(strconv.AppendUint(dst, count, 16))
}
