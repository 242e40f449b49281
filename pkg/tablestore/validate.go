package tablestore

import "fmt"

// String returns the key as table/partition/row, for messages.
func (k Key) String() string {
	return k.Table + "/" + k.Partition + "/" + k.Row
}

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

// Validate reports the first rule of the port that the batch breaks: an error
// that wraps [ErrInvalid], or [ErrTooLarge] if a size is exceeded, and names
// the row and the property. Drivers call it before they write.
//
// [Apply] resolves [Own], and [AtomicStore] resolves it across batches; it is
// invalid in a single batch.
func (b Batch) Validate() error {
	if err := b.validate(); err != nil {
		return err
	}
	for i := range b {
		if b[i].ETag == Own {
			return b[i].fault(ErrInvalid, "no earlier stage wrote this row")
		}
	}
	return nil
}

// ValidateAll is [Batch.Validate] for the batches of one
// [AtomicStore.CommitAll], where [Own] may name a row that an earlier batch
// writes.
func ValidateAll(batches []Batch) error {
	written := map[Key]bool{}
	for _, batch := range batches {
		if err := batch.validate(); err != nil {
			return err
		}
		if err := batch.followOwn(written); err != nil {
			return err
		}
	}
	return nil
}

// validate checks all rules except that of Own.
func (b Batch) validate() error {
	if len(b) == 0 {
		return fmt.Errorf("%w: empty batch", ErrInvalid)
	}
	if len(b) > MaxBatchOps {
		return fmt.Errorf("%w: batch of %d ops on %s/%s, limit %d",
			ErrTooLarge, len(b), b[0].Key.Table, b[0].Key.Partition, MaxBatchOps)
	}
	seen := make(map[string]struct{}, len(b))
	small := true
	for i := range b {
		op := &b[i]
		fits := op.surelyFits()
		small = small && fits
		if op.Key.Table != b[0].Key.Table || op.Key.Partition != b[0].Key.Partition {
			return op.fault(ErrInvalid, "batch began on partition %s/%s", b[0].Key.Table, b[0].Key.Partition)
		}
		if _, twice := seen[op.Key.Row]; twice {
			return op.fault(ErrInvalid, "row is twice in one batch")
		}
		seen[op.Key.Row] = struct{}{}
		if err := op.validate(fits); err != nil {
			return err
		}
	}
	if small {
		return nil
	}
	if size := BatchBytes(b); size > MaxBatchBytes {
		return fmt.Errorf("%w: batch on %s/%s counts %d bytes, limit %d",
			ErrTooLarge, b[0].Key.Table, b[0].Key.Partition, size, MaxBatchBytes)
	}
	return nil
}

// followOwn checks that each Own names a row in written, and then adds the rows
// that the batch writes and drops those that it removes.
func (b Batch) followOwn(written map[Key]bool) error {
	for i := range b {
		if b[i].ETag == Own && !written[b[i].Key] {
			return b[i].fault(ErrInvalid, "no earlier stage wrote this row")
		}
	}
	for i := range b {
		written[b[i].Key] = b[i].Verb.writes()
	}
	return nil
}

// fault returns an error of that class that names the op's row.
func (op *Op) fault(class error, format string, args ...any) error {
	return fmt.Errorf("%w: %s %s: %s", class, op.Verb, op.Key, fmt.Sprintf(format, args...))
}

// validate checks one op by itself. small says that its row is known to fit.
func (op *Op) validate(small bool) error {
	if err := op.Key.Validate(); err != nil {
		return fmt.Errorf("%s %s: %w", op.Verb, op.Key, err)
	}
	if err := op.validateVerb(); err != nil {
		return err
	}
	if len(op.Properties) > MaxProperties {
		return op.fault(ErrTooLarge, "%d properties, limit %d", len(op.Properties), MaxProperties)
	}
	for i := range op.Properties {
		p := &op.Properties[i]
		if op.Properties[:i].has(p.Name) {
			return op.fault(ErrInvalid, "property %q is there twice", p.Name)
		}
		if class, reason := p.fault(); class != nil {
			return op.fault(class, "property %q %s", p.Name, reason)
		}
	}
	if small {
		return nil
	}
	if size := RowBytes(op.Properties); size > MaxRowBytes {
		return op.fault(ErrTooLarge, "row counts %d bytes, limit %d", size, MaxRowBytes)
	}
	return nil
}

// validateVerb checks that the op carries what its verb needs and no more.
func (op *Op) validateVerb() error {
	switch {
	case op.Verb < Insert || op.Verb > Discard:
		return op.fault(ErrInvalid, "unknown verb")
	case op.Verb.conditional() && op.ETag == "":
		return op.fault(ErrInvalid, "needs an ETag")
	case !op.Verb.conditional() && op.ETag != "":
		return op.fault(ErrInvalid, "takes no ETag")
	case !op.Verb.writes() && len(op.Properties) > 0:
		return op.fault(ErrInvalid, "takes no properties")
	}
	return nil
}
