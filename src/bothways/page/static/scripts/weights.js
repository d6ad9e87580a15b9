/* Weights in a safetensors file, as fp32. A model may store what it adds to another one's matrices (LoRA):
 * name.down (rank, in) and name.up (out, rank). */

export class Weights {
  /** @param bytes the file; @param base the weights of the model that this one changes, or null */
  constructor(bytes, base = null) {
    const view = new DataView(bytes.buffer, bytes.byteOffset);
    const length = Number(view.getBigUint64(0, true));
    this.header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
    this.data = bytes.subarray(8 + length);
    this.base = base;
  }

  /** A tensor in fp32: {values, shape}. */
  tensor(name) {
    if (this.header[name]) return this.own(name);
    if (!this.base) throw new Error(`there are no weights called ${name}`);
    const found = this.base.tensor(name);
    if (this.header[`${name}.up`]) addProduct(found.values, this.own(`${name}.up`), this.own(`${name}.down`));
    return found;
  }

  own(name) {
    const { dtype, shape, data_offsets: [start, end] } = this.header[name];
    const bytes = this.data.slice(start, end).buffer;
    if (dtype === "F32") return { values: new Float32Array(bytes), shape };
    return { values: fromHalf(new Uint16Array(bytes)), shape };
  }

  bytes(name) {
    return new Uint8Array(this.tensor(name).values.buffer);
  }
}

let halves;
/** Numbers of 16 bits in 32: by a table of all of them. */
function fromHalf(bits) {
  halves ??= Float32Array.from({ length: 65536 }, (_, half) => {
    const sign = half & 0x8000 ? -1 : 1, exponent = (half >> 10) & 31, fraction = half & 1023;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
  });
  const found = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i++) found[i] = halves[bits[i]];
  return found;
}

/** matrix (out, in) += up (out, rank) · down (rank, in). */
function addProduct(matrix, up, down) {
  const [rank, width] = down.shape;
  for (let i = 0; i < up.shape[0]; i++) {
    for (let r = 0; r < rank; r++) {
      const factor = up.values[i * rank + r];
      for (let j = 0; j < width; j++) matrix[i * width + j] += factor * down.values[r * width + j];
    }
  }
}
