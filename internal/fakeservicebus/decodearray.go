package fakeservicebus

import "encoding/binary"

// array returns an array. Its items share the constructor before the first.
func (d *decoder) array(code byte, data []byte) (any, error) {
	if code != codeArray8 && code != codeArray32 {
		return nil, unknownCode(code)
	}
	inner, count, err := d.inside(code == codeArray32, data)
	if err != nil {
		return nil, err
	}
	constructor, err := inner.take(1)
	if err != nil {
		return nil, err
	}
	items, err := inner.items(constructor[0], count)
	if err != nil {
		return nil, err
	}
	return array{items: items, raw: rawArray(code, data)}, nil
}

// items decodes that many values of one constructor.
func (d *decoder) items(constructor byte, count int) ([]any, error) {
	var descriptor any
	isDescribed := constructor == codeDescribed
	if isDescribed {
		var err error
		if descriptor, err = d.value(); err != nil {
			return nil, err
		}
		next, err := d.take(1)
		if err != nil {
			return nil, err
		}
		constructor = next[0]
	}
	switch {
	case constructor>>4 == 0x4 && count > maxZeroWidths:
		return nil, errNoWidth
	case constructor>>4 != 0x4 && count > len(d.rest()):
		return nil, errCount
	}
	items := make([]any, count)
	for i := range items {
		item, err := d.valueOf(constructor)
		if err != nil {
			return nil, err
		}
		if isDescribed {
			item = described{descriptor, item}
		}
		items[i] = item
	}
	return items, nil
}

// rawArray encodes the array as it was read.
func rawArray(code byte, data []byte) []byte {
	if code == codeArray8 {
		return append([]byte{code, byte(len(data))}, data...)
	}
	return append(binary.BigEndian.AppendUint32([]byte{code}, uint32(len(data))), data...)
}
