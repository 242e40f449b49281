package tablestore

import (
	"slices"
	"strconv"
)

// AppendLarge appends data under that name, split over as many properties as
// its size needs: name, name_1, name_2 and so on, [MaxPropertyBytes] each.
// Empty data is one empty property. The properties own data from then on.
func AppendLarge(properties Properties, name string, data []byte) Properties {
	for i := 0; i == 0 || len(data) > 0; i++ {
		n := min(len(data), MaxPropertyBytes)
		properties = append(properties, Property{Name: chunkName(name, i), Value: Bytes(data[:n:n])})
		data = data[n:]
	}
	return properties
}

// Large returns what [AppendLarge] stored under that name, and nil where there
// is nothing. Data of a single property is not copied.
func Large(properties Properties, name string) []byte {
	first := properties.Get(name)
	if first.Kind() != KindBytes {
		return nil
	}
	data := first.Bytes()
	if data == nil {
		data = []byte{}
	}
	data = slices.Clip(data)
	for i := 1; ; i++ {
		chunk := properties.Get(chunkName(name, i))
		if chunk.Kind() != KindBytes {
			return data
		}
		data = append(data, chunk.Bytes()...)
	}
}

func chunkName(name string, i int) string {
	if i == 0 {
		return name
	}
	return name + "_" + strconv.Itoa(i)
}
