package tablestore

import (
	"fmt"
	"slices"
	"time"
	"unicode/utf8"
)

// The port's limits. They are those of Azure Tables, or stricter, and the same
// for every driver: what one store accepts, all accept.
const (
	// MaxBatchOps is the greatest number of writes in a batch.
	MaxBatchOps = 100

	// MaxBatchBytes is the largest [BatchBytes] of a batch.
	MaxBatchBytes = 4 << 20

	// MaxRowBytes is the largest [RowBytes] of a row.
	MaxRowBytes = 1 << 20

	// MaxProperties is the greatest number of properties of a row.
	MaxProperties = 252

	// MaxStringUnits is the greatest length of a string value in UTF-16 code
	// units.
	MaxStringUnits = 32 << 10

	// MaxKeyBytes is the longest partition key and the longest row key, in bytes.
	MaxKeyBytes = 512

	// MaxNameBytes is the longest property name, in bytes.
	MaxNameBytes = 255
)

// The range of times that every driver can store.
var (
	minTime = time.Date(1601, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	maxTime = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli() - 1
)

// onlyAtomic is the reason why a [Clear] is invalid.
const onlyAtomic = "only an AtomicStore clears partitions"

// Validate reports the first rule of the port that the key breaks, as an
// error that wraps [ErrInvalid].
func (k Key) Validate() error {
	if err := validatePartition(k.Table, k.Partition); err != nil {
		return err
	}
	return validateKeyPart("row key", k.Row)
}

// Validate reports the first rule of the port that the query breaks, as an
// error that wraps [ErrInvalid]. The bounds may be any strings.
func (q Query) Validate() error {
	if err := validatePartition(q.Table, q.Partition); err != nil {
		return fmt.Errorf("query: %w", err)
	}
	if q.Limit < 0 {
		return fmt.Errorf("query: %w: negative limit %d", ErrInvalid, q.Limit)
	}
	return nil
}

// Validate reports the first rule of the port that the walk breaks, as an error
// that wraps [ErrInvalid].
func (w Walk) Validate() error {
	if err := validateTable(w.Table); err != nil {
		return fmt.Errorf("walk: %w", err)
	}
	if w.Partition != "" || w.Row != "" {
		key := Key{Table: w.Table, Partition: w.Partition, Row: w.Row}
		if err := key.Validate(); err != nil {
			return fmt.Errorf("walk: %w", err)
		}
	}
	if w.Limit < 0 {
		return fmt.Errorf("walk: %w: negative limit %d", ErrInvalid, w.Limit)
	}
	return nil
}

// Validate reports the first rule of the port that the batch breaks: an error
// that wraps [ErrInvalid], or [ErrTooLarge] if a size is exceeded, and names
// the row and the property. Drivers call it before they write.
//
// [Apply] resolves [Own], and [AtomicStore] resolves it across batches; it is
// invalid in a single batch.
func (b Batch) Validate() error {
	if b.Clears() {
		return b[0].fault(ErrInvalid, onlyAtomic)
	}
	return ValidateAll([]Batch{b})
}

// ValidateAll is [Batch.Validate] for the batches of one
// [AtomicStore.CommitAll], where [Own] may name a row that an earlier batch
// writes.
func ValidateAll(batches []Batch) error {
	var cleared map[Key]bool // by keys without rows; nil spares each commit an allocation
	for n, batch := range batches {
		if len(batch) > 0 && cleared[Key{Table: batch[0].Key.Table, Partition: batch[0].Key.Partition}] {
			return batch[0].fault(ErrInvalid, "an earlier batch clears the partition")
		}
		if batch.Clears() {
			if err := batch[0].validateClear(); err != nil {
				return err
			}
			if cleared == nil {
				cleared = map[Key]bool{}
			}
			cleared[batch[0].Key] = true
			continue
		}
		if err := batch.validate(); err != nil {
			return err
		}
		for i := range batch {
			if op := &batch[i]; op.ETag == Own && !lastWrites(batches[:n], op.Key) {
				return op.fault(ErrInvalid, "no earlier stage wrote this row")
			}
		}
	}
	return nil
}

// validateClear checks a [Clear], whose key has no row.
func (op *Op) validateClear() error {
	if err := validatePartition(op.Key.Table, op.Key.Partition); err != nil {
		return fmt.Errorf("%s %s: %w", Clear, op.Key, err)
	}
	if op.ETag != "" || len(op.Properties) > 0 {
		return op.fault(ErrInvalid, "takes no ETag and no properties")
	}
	return nil
}

// Clears reports whether the batch is a [Clear] of its partition.
func (b Batch) Clears() bool { return len(b) == 1 && b[0].Verb == Clear && b[0].Key.Row == "" }

// ValidateKeys reports the first key that breaks a rule of the port.
func ValidateKeys(keys []Key) error {
	for _, key := range keys {
		if err := key.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// lastWrites reports whether the last of the batches with that row writes it.
func lastWrites(batches []Batch, key Key) bool {
	for _, batch := range slices.Backward(batches) {
		if i := batch.find(key.Row); i >= 0 && batch[i].Key == key {
			return batch[i].Verb.writes()
		}
	}
	return false
}

// find returns the index of the first op on that row, or -1.
func (b Batch) find(row string) int {
	for i := range b {
		if b[i].Key.Row == row {
			return i
		}
	}
	return -1
}

// validate checks all rules except that of Own.
func (b Batch) validate() error {
	if len(b) == 0 {
		return fmt.Errorf("%w: empty batch", ErrInvalid)
	}
	table, partition := b[0].Key.Table, b[0].Key.Partition
	if err := validatePartition(table, partition); err != nil {
		return fmt.Errorf("%s %s: %w", b[0].Verb, b[0].Key, err)
	}
	if len(b) > MaxBatchOps {
		return fmt.Errorf("%w: batch of %d ops on %s/%s, limit %d", ErrTooLarge, len(b), table, partition, MaxBatchOps)
	}
	small := true
	for i := range b {
		op := &b[i]
		fits := op.surelyFits()
		small = small && fits
		if op.Key.Table != table || op.Key.Partition != partition {
			return op.fault(ErrInvalid, "batch began on partition %s/%s", table, partition)
		}
		// Few rows, of different lengths: this is quicker than a set.
		if b[:i].find(op.Key.Row) >= 0 {
			return op.fault(ErrInvalid, "row is twice in one batch")
		}
		if err := op.validate(fits); err != nil {
			return err
		}
	}
	if small {
		return nil
	}
	if size := BatchBytes(b); size > MaxBatchBytes {
		return fmt.Errorf("%w: batch on %s/%s counts %d bytes, limit %d", ErrTooLarge, table, partition, size, MaxBatchBytes)
	}
	return nil
}

// fault returns an error of that class that names the op's row.
func (op *Op) fault(class error, format string, args ...any) error {
	return fmt.Errorf("%w: %s %s: %s", class, op.Verb, op.Key, fmt.Sprintf(format, args...))
}

// validate checks one op of a valid partition by itself. small says that its row is
// known to fit.
func (op *Op) validate(small bool) error {
	if err := validateKeyPart("row key", op.Key.Row); err != nil {
		return fmt.Errorf("%s %s: %w", op.Verb, op.Key, err)
	}
	switch {
	case op.Verb < Insert || op.Verb > Discard:
		return op.fault(ErrInvalid, "unknown verb")
	case op.Verb.conditional() && op.ETag == "":
		return op.fault(ErrInvalid, "needs an ETag")
	case !op.Verb.conditional() && op.ETag != "":
		return op.fault(ErrInvalid, "takes no ETag")
	case !op.Verb.writes() && len(op.Properties) > 0:
		return op.fault(ErrInvalid, "takes no properties")
	case len(op.Properties) > MaxProperties:
		return op.fault(ErrTooLarge, "%d properties, limit %d", len(op.Properties), MaxProperties)
	}
	earlier := uint64(0) // A bit for each name: only names with the same bit are compared.
	for i := range op.Properties {
		p := &op.Properties[i]
		if class, reason := p.fault(); class != nil {
			return op.fault(class, "property %q %s", p.Name, reason)
		}
		bit := uint64(1) << ((7*len(p.Name) + int(p.Name[0]) + 3*int(p.Name[len(p.Name)-1])) % 64)
		if earlier&bit != 0 && slices.ContainsFunc(op.Properties[:i], func(e Property) bool { return e.Name == p.Name }) {
			return op.fault(ErrInvalid, "property %q occurs twice", p.Name)
		}
		earlier |= bit
	}
	if small {
		return nil
	}
	if size := RowBytes(op.Properties); size > MaxRowBytes {
		return op.fault(ErrTooLarge, "row counts %d bytes, limit %d", size, MaxRowBytes)
	}
	return nil
}

// fault returns the class of the first rule that the property breaks and the
// reason, or nil if it is valid.
func (p *Property) fault() (class error, reason string) { //nolint:revive,staticcheck // A class, not an outcome.
	v := &p.Value
	switch {
	case len(p.Name) > MaxNameBytes:
		return ErrTooLarge, fmt.Sprintf("has a name of %d bytes, limit %d", len(p.Name), MaxNameBytes)
	case !validName(p.Name):
		return ErrInvalid, "has a name that does not match [A-Za-z_][A-Za-z0-9_]*"
	case p.Name == "PartitionKey" || p.Name == "RowKey" || p.Name == "Timestamp":
		return ErrInvalid, "has a reserved name"
	case v.kind < KindString || v.kind > KindTime:
		return ErrInvalid, "has no value"
	case v.kind == KindString && !utf8.ValidString(v.str):
		return ErrInvalid, "is not valid UTF-8"
	case v.kind == KindTime && (v.num < minTime || v.num > maxTime):
		return ErrInvalid, "is a time outside the years 1601 to 9999"
	}
	// A UTF-8 byte is at most one UTF-16 unit, so most strings need no count.
	if v.kind == KindString && len(v.str) > MaxStringUnits {
		if units := utf16Units(v.str); units > MaxStringUnits {
			return ErrTooLarge, fmt.Sprintf("is a string of %d UTF-16 units, limit %d", units, MaxStringUnits)
		}
	}
	return nil, ""
}

func validName(name string) bool {
	for i := range len(name) {
		c := name[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

func validatePartition(table, partition string) error {
	if err := validateTable(table); err != nil {
		return err
	}
	return validateKeyPart("partition key", partition)
}

func validateTable(table string) error {
	legal := len(table) >= 3 && len(table) <= 63 && table[0] >= 'a' && table != "tables"
	for i := range len(table) {
		c := table[i]
		legal = legal && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9')
	}
	if !legal {
		return fmt.Errorf("%w: table name %q is not 3 to 63 lower-case letters and digits that begin with a letter",
			ErrInvalid, table)
	}
	return nil
}

func validateKeyPart(what, part string) error {
	if part == "" {
		return fmt.Errorf("%w: empty %s", ErrInvalid, what)
	}
	if len(part) > MaxKeyBytes {
		return fmt.Errorf("%w: %s of %d bytes, limit %d", ErrTooLarge, what, len(part), MaxKeyBytes)
	}
	for i := range len(part) {
		if c := part[i]; !plain(c) && c != escapeMark && c != separator {
			return fmt.Errorf("%w: byte %#02x in the %s %q: build it with Escape and Join", ErrInvalid, c, what, part)
		}
	}
	return nil
}

// Sizes of the parts of a row and an op, in bytes.
const (
	rowOverhead      = 4 + 2*(MaxKeyBytes+MaxKeyBytes)
	propertyOverhead = 8
	opOverhead       = 1 << 10
	annotation       = 40
	scalar           = 32 // The longest number or time, or the quotes of a string.
	escaped          = 6  // The longest form of one byte in a JSON string.
)

// RowBytes returns the size of a row with these properties as Azure Tables
// counts it: two bytes for each UTF-16 code unit of names and strings, plus a
// fixed cost per property. The keys count with their greatest length, so the
// result does not depend on the row's key. A row fits if it is at most
// [MaxRowBytes].
func RowBytes(properties Properties) int {
	size := rowOverhead
	for i := range properties {
		size += propertyOverhead + 2*len(properties[i].Name)
		switch v := &properties[i].Value; v.kind {
		case KindString:
			size += 4 + 2*utf16Units(v.str)
		case KindBool:
			size++
		default:
			size += 8
		}
	}
	return size
}

// BatchBytes returns an upper bound of the batch's size on the wire, where
// strings are JSON. A batch fits if it is at most [MaxBatchBytes].
func BatchBytes(batch Batch) int {
	size := 0
	for i := range batch {
		size += OpBytes(batch[i])
	}
	return size
}

// OpBytes returns what the op adds to [BatchBytes] of its batch.
func OpBytes(op Op) int {
	size := op.fixedBytes()
	for i := range op.Properties {
		size += annotation + 2*len(op.Properties[i].Name)
		if v := &op.Properties[i].Value; v.kind == KindString {
			size += 2 + jsonBytes(v.str)
		} else {
			size += scalar
		}
	}
	return size
}

// surelyFits reports whether the op is so small that neither its row nor its
// share of a full batch can exceed a limit, whatever characters it holds. Most
// ops are, and counting characters costs more than the other checks.
func (op *Op) surelyFits() bool {
	longest := op.fixedBytes()
	for i := range op.Properties {
		p := &op.Properties[i]
		longest += annotation + 2*len(p.Name) + scalar + escaped*len(p.Value.str)
		if longest > MaxBatchBytes/MaxBatchOps {
			return false
		}
	}
	return true
}

// fixedBytes returns the op's size on the wire without its properties. A key is
// in the body and, percent-encoded, in the address.
func (op *Op) fixedBytes() int {
	return opOverhead + len(op.ETag) + 4*(len(op.Key.Partition)+len(op.Key.Row))
}

// utf16Units returns the number of UTF-16 code units of s, which is valid UTF-8.
func utf16Units(s string) int {
	units := 0
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 0xF0: // the first of four bytes: two units
			units += 2
		case c&0xC0 != 0x80: // the first byte of any other character
			units++
		}
	}
	return units
}

// jsonBytes returns the length of s inside a JSON string, where markup
// characters and line separators are escaped as well.
func jsonBytes(s string) int {
	size := 0
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			size += 2
		case r < 0x20 || r == '<' || r == '>' || r == '&' || r == '\u2028' || r == '\u2029':
			size += 6
		default:
			size += utf8.RuneLen(r)
		}
	}
	return size
}
