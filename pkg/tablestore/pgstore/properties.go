package pgstore

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// timeLayout is how times are stored: in UTC, to the millisecond.
const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// Objects represent values for which JSON has no type: {"t": time}, and {"s": base64} for a
// text with a NUL, which jsonb cannot hold.
const (
	tagTime = "t"
	tagText = "s"
)

// encode returns the properties as a JSON object.
func encode(properties tablestore.Properties) (string, error) {
	var out strings.Builder
	out.WriteByte('{')
	for i := range properties {
		p := &properties[i]
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteByte('"')
		out.WriteString(p.Name) // An identifier needs no escapes.
		out.WriteString(`":`)
		switch value := p.Value; value.Kind() {
		case tablestore.KindString:
			if err := encodeText(&out, value.String()); err != nil {
				return "", err
			}
		case tablestore.KindInt:
			out.WriteString(strconv.FormatInt(value.Int(), 10))
		case tablestore.KindBool:
			out.WriteString(strconv.FormatBool(value.Bool()))
		case tablestore.KindTime:
			writeTagged(&out, tagTime, value.Time().Format(timeLayout))
		default:
			return "", fmt.Errorf("%w: property %s has no value", tablestore.ErrInvalid, p.Name)
		}
	}
	out.WriteByte('}')
	return out.String(), nil
}

func encodeText(out *strings.Builder, text string) error {
	if strings.IndexByte(text, 0) >= 0 {
		writeTagged(out, tagText, base64.StdEncoding.EncodeToString([]byte(text)))
		return nil
	}
	quoted, err := json.Marshal(text)
	if err != nil {
		return fmt.Errorf("encode a text: %w", err)
	}
	out.Write(quoted)
	return nil
}

func writeTagged(out *strings.Builder, tag, text string) {
	out.WriteString(`{"` + tag + `":"` + text + `"}`)
}

// decode is the inverse of encode. The error wraps [tablestore.ErrCorrupt].
func decode(text []byte) (tablestore.Properties, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil {
		return nil, fmt.Errorf("%w: %w", tablestore.ErrCorrupt, err)
	}
	properties := make(tablestore.Properties, 0, len(object))
	for name, stored := range object {
		value, err := decodeValue(stored)
		if err != nil {
			return nil, fmt.Errorf("%w: property %s: %w", tablestore.ErrCorrupt, name, err)
		}
		properties = append(properties, tablestore.Property{Name: name, Value: value})
	}
	return properties, nil
}

func decodeValue(stored any) (none tablestore.Value, err error) {
	switch value := stored.(type) {
	case string:
		return tablestore.String(value), nil
	case bool:
		return tablestore.Bool(value), nil
	case json.Number:
		number, err := value.Int64()
		return tablestore.Int(number), err
	case map[string]any:
		for tag, inner := range value {
			text, _ := inner.(string)
			switch tag {
			case tagTime:
				at, err := time.Parse(timeLayout, text)
				return tablestore.Time(at), err
			case tagText:
				raw, err := base64.StdEncoding.DecodeString(text)
				return tablestore.String(string(raw)), err
			}
		}
	}
	return none, fmt.Errorf("%v is not a value", stored)
}
