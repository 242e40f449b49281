package ledger

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// schemaVersion is written to every row. A replica reads rows of its own
// version and of the next one, whose new columns it carries along unread.
const schemaVersion = 1

const columnVersion = "v"

// columns builds a row's properties; zero values are left out.
type columns struct{ list tablestore.Properties }

func newColumns(capacity int) *columns {
	c := &columns{list: make(tablestore.Properties, 0, capacity)}
	c.int(columnVersion, schemaVersion)
	return c
}

func (c *columns) add(name string, value tablestore.Value) {
	c.list = append(c.list, tablestore.Property{Name: name, Value: value})
}

func (c *columns) str(name, s string) {
	if s != "" {
		c.add(name, tablestore.String(s))
	}
}

func (c *columns) int(name string, n int64) {
	if n != 0 {
		c.add(name, tablestore.Int(n))
	}
}

func (c *columns) bool(name string, b bool) {
	if b {
		c.add(name, tablestore.Bool(b))
	}
}

func (c *columns) time(name string, t time.Time) {
	if !t.IsZero() {
		c.add(name, tablestore.Time(t))
	}
}

func (c *columns) bytes(name string, b []byte) {
	if len(b) > 0 {
		c.add(name, tablestore.Bytes(b))
	}
}

// carry appends the loaded properties that this version does not know, so that
// a write by an older replica does not erase a newer one's fields.
func (c *columns) carry(loaded tablestore.Properties, known func(string) bool) tablestore.Properties {
	for i := range loaded {
		if !known(loaded[i].Name) {
			c.list = append(c.list, loaded[i])
		}
	}
	return c.list
}

// Carry appends to the properties that a row is written with those of the row
// as it was loaded that the writer does not know: a write by an older replica
// must not erase a newer one's fields. It is what the ledger's own rows do.
func Carry(written, loaded tablestore.Properties, known func(name string) bool) tablestore.Properties {
	c := columns{list: written}
	return c.carry(loaded, known)
}

// checkVersion refuses a row of a schema that is too new to be changed safely.
func checkVersion(row *tablestore.Row) error {
	if v := row.Properties.Get(columnVersion).Int(); v > schemaVersion+1 {
		return fmt.Errorf("row %s of job %s has schema version %d, newer than this program can handle",
			row.Key.Row, row.Key.Partition, v)
	}
	return nil
}

// formatDelays writes a list of delays in milliseconds.
func formatDelays(delays []time.Duration) string {
	var b strings.Builder
	for i, d := range delays {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(d.Milliseconds(), 10))
	}
	return b.String()
}

// parseDelays reads what formatDelays wrote.
func parseDelays(s string) ([]time.Duration, error) {
	if s == "" {
		return nil, nil
	}
	delays := make([]time.Duration, 0, strings.Count(s, ",")+1)
	for part := range strings.SplitSeq(s, ",") {
		ms, err := strconv.ParseInt(part, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("bad list of delays %q", s)
		}
		delays = append(delays, time.Duration(ms)*time.Millisecond)
	}
	return delays, nil
}
