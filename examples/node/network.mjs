// The DQN of docs/protocol.md, "Acting": reads its network from a safetensors file, and explores.

// GetModelResponse.data: the length of a header, the header in JSON, the data. Every tensor here is float32.
export function readTensors(file) {
  const begin = 8 + Number(file.readBigUInt64LE(0));
  const { __metadata__, ...header } = JSON.parse(file.toString("utf8", 8, begin));
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets }] of Object.entries(header)) {
    if (dtype !== "F32") throw new Error(`tensor ${name}: expected F32, found ${dtype}`);
    const data = file.subarray(begin + data_offsets[0], begin + data_offsets[1]);
    const values = Float32Array.from({ length: data.length / 4 }, (_, i) => data.readFloatLE(4 * i));
    tensors[name] = { shape, values };
  }
  return tensors;
}

// Linear layers with ReLU between them: layers.1, layers.3, layers.5, … A dueling network has them as net.layers.1, ….
export class QNetwork {
  constructor(tensors) {
    this.isDueling = "net.layers.1.weight" in tensors;
    const prefix = this.isDueling ? "net." : "";
    this.layers = [];
    for (let i = 1; `${prefix}layers.${i}.weight` in tensors; i += 2)
      this.layers.push({ weight: tensors[`${prefix}layers.${i}.weight`], bias: tensors[`${prefix}layers.${i}.bias`] });
    const known = this.layers.length * 2;
    if (!known || known !== Object.keys(tensors).length)
      throw new Error(`expected the layers of a DQN without network, found ${Object.keys(tensors)}`);
  }

  // The value of each action.
  values(obs) {
    let values = obs;
    this.layers.forEach((layer, i) => {
      values = linear(layer, values);
      if (i < this.layers.length - 1) values = values.map((value) => Math.max(0, value));
    });
    if (!this.isDueling) return values;
    const [state, ...advantages] = values;
    const mean = advantages.reduce((sum, value) => sum + value, 0) / advantages.length;
    return advantages.map((advantage) => state + advantage - mean);
  }
}

// Weight [out, in], row after row, times the inputs, plus bias.
function linear({ weight, bias }, inputs) {
  const [n, width] = weight.shape;
  if (width !== inputs.length) throw new Error(`network: expected ${width} inputs, found ${inputs.length}`);
  return Array.from({ length: n }, (_, row) => {
    let sum = bias.values[row];
    for (let i = 0; i < width; i += 1) sum += weight.values[row * width + i] * inputs[i];
    return sum;
  });
}

// The probability of a random action: linear in the model's opt steps, from `start` to this actor's own epsilon.
export function epsilonAt(optSteps, epsilon, explorer = {}) {
  const { kind = "epsilon_greedy", start = 1.0, final_step: finalStep = 10_000 } = explorer;
  if (kind !== "epsilon_greedy") throw new Error(`explorer: expected epsilon_greedy, found ${kind}`);
  return optSteps >= finalStep ? epsilon : start + ((epsilon - start) * optSteps) / finalStep;
}

// Epsilon-greedy; among equal values, the first one counts as the greatest.
export function choose(values, epsilon) {
  if (Math.random() < epsilon) return Math.floor(values.length * Math.random());
  return values.indexOf(Math.max(...values));
}
