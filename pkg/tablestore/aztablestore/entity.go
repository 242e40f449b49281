package aztablestore

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The type annotations in an entity's JSON. Strings, booleans and numbers of 32 bits need
// none.
const (
	typeSuffix = "@odata.type"
	typeInt    = "Edm.Int64"
	typeTime   = "Edm.DateTime"
)

// timeLayout is how times are stored: always UTC, in milliseconds.
const timeLayout = "2006-01-02T15:04:05.000Z"

// encodeRow returns the entity of a row. An integer of 32 bits is an Edm.Int32, because a
// filter such as "lane eq 0" matches no Edm.Int64. Larger ones are sent as text: a JSON number
// would pass through a float.
func encodeRow(key tablestore.Key, properties tablestore.Properties) []byte {
	entity := make(map[string]any, 2+2*len(properties))
	entity["PartitionKey"], entity["RowKey"] = key.Partition, key.Row
	for i := range properties {
		name, value := properties[i].Name, properties[i].Value
		switch value.Kind() {
		case tablestore.KindString:
			entity[name] = value.String()
		case tablestore.KindBool:
			entity[name] = value.Bool()
		case tablestore.KindInt:
			if n := value.Int(); n == int64(int32(n)) {
				entity[name] = n
			} else {
				entity[name], entity[name+typeSuffix] = strconv.FormatInt(n, 10), typeInt
			}
		case tablestore.KindTime:
			entity[name], entity[name+typeSuffix] = value.Time().Format(timeLayout), typeTime
		}
	}
	encoded, _ := json.Marshal(entity) // Texts, booleans and integers cannot fail.
	return encoded
}

// decodeRow returns the row of an entity in that table. The error wraps
// [tablestore.ErrCorrupt].
func decodeRow(table string, entity []byte) (tablestore.Row, error) {
	var fields map[string]any
	if err := json.Unmarshal(entity, &fields); err != nil {
		return tablestore.Row{}, fmt.Errorf("%w: %w", tablestore.ErrCorrupt, err)
	}
	partition, _ := fields["PartitionKey"].(string)
	name, _ := fields["RowKey"].(string)
	etag, _ := fields["odata.etag"].(string)
	row := tablestore.Row{
		Key:  tablestore.Key{Table: table, Partition: partition, Row: name},
		ETag: tablestore.ETag(etag),
	}
	if etag == "" || row.Key.Validate() != nil {
		return tablestore.Row{}, fmt.Errorf("%w: entity %s has no ETag or an invalid key", tablestore.ErrCorrupt, row.Key)
	}
	row.Properties = make(tablestore.Properties, 0, len(fields))
	for name, field := range fields {
		// The service's own fields. Names of the row's properties contain no dot.
		if name == "PartitionKey" || name == "RowKey" || name == "Timestamp" || strings.Contains(name, ".") {
			continue
		}
		kind, _ := fields[name+typeSuffix].(string)
		value, err := decodeValue(kind, field)
		if err != nil {
			return tablestore.Row{}, fmt.Errorf("%w: property %q of row %s: %w", tablestore.ErrCorrupt, name, row.Key, err)
		}
		row.Properties = append(row.Properties, tablestore.Property{Name: name, Value: value})
	}
	return row, nil
}

// decodeValue returns the value of a field of that type.
func decodeValue(kind string, field any) (tablestore.Value, error) {
	switch field := field.(type) {
	case bool:
		return tablestore.Bool(field), nil
	case float64:
		// A whole number without a type is an Edm.Int32.
		if n := int32(field); kind == "" && float64(n) == field {
			return tablestore.Int(int64(n)), nil
		}
	case string:
		switch kind {
		case "", "Edm.String":
			return tablestore.String(field), nil
		case typeInt:
			n, err := strconv.ParseInt(field, 10, 64)
			return tablestore.Int(n), err
		case typeTime:
			t, err := time.Parse(time.RFC3339Nano, field)
			return tablestore.Time(t), err
		}
	}
	return tablestore.Value{}, fmt.Errorf("unexpected %T of type %q", field, kind)
}
