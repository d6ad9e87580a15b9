/* What the page says, in English and Chinese, and its examples. */

export const TEXTS = {
  en: {
    skip: "Skip to content", about: "BERT in your browser", tabs: "What to do",
    footer: "Everything is computed in this browser. No text leaves it.",
    speed: "{ms} ms for the last query", model: "Model", examples: "Try an example",
    text: "Text", second: "Second text", question: "Question", context: "Text with the answer", query: "Sentence", lines: "Compare with these lines",
    fillHint: "Write [MASK] where a word is missing.", blank: "Insert [MASK]", linesHint: "One sentence on each line.",
    waiting: "The answer appears here. The model is loaded with the first one.",
    loading: "Loading the model", computing: "Computing …", keys: "Ctrl + Enter",
    more: "Show all {count}", fewer: "Show fewer", threshold: "threshold {value}", thresholds: "A line marks the threshold above which a label is predicted.", noLabel: "No label reaches its threshold.",
    noAnswer: "The text has no answer.", noTags: "No entities were found.", others: "Other answers", best: "Best",
    heads: "Layers and heads", layer: "Layer", head: "Head", headName: "Layer {layer}, head {head}",
    headsHint: "Layers run from left to right, heads from top to bottom. Arrow keys move.",
    tokensHint: "Point at a token to see what it attends to.", weight: "{from} → {to}: {value}",
    mapName: "Attention weights of layer {layer}, head {head}: rows attend to columns.",
    models: {
      en: "English, mask filling and embeddings", zh: "Chinese, mask filling and embeddings", "en-answer": "question answering", "en-emotion": "27 emotions and neutral",
      "en-nli": "natural language inference", "en-pos": "parts of speech", "en-spam": "spam or not",
      "en-ner": "people, places, organisations", "en-sentiment": "positive or negative", "zh-answer": "Chinese, question answering",
      "zh-ner": "Chinese, people, places, organisations", "zh-pos": "Chinese, words and parts of speech", "zh-sentiment": "Chinese, positive or negative",
      sentence: "English, sentence embeddings", "sentence-zh": "Chinese and English, sentence embeddings",
    },
    tab: { fill: "Fill masks", attention: "Attention", classify: "Text classification", tag: "Token classification", answer: "Question answering", similar: "Sentence similarity" },
    go: { fill: "Fill", attention: "Show", classify: "Classify", tag: "Tag", answer: "Answer", similar: "Compare" },
    notes: {
      windows: "The text is long: it was read in {windows} overlapping windows, and nothing was left out.",
      cut: "The text is too long: it was truncated to {limit} tokens, and the last {tokens} were not read.",
      cutLines: "Sentences that were too long and were truncated to {limit} tokens: {lines}.",
      unknown: "{share} % of the tokens are not in this model's vocabulary, so its output is unreliable.",
      strange: "Much of the text is in a writing system that this model cannot read, so its output is unreliable.",
      strangeLines: "{lines} of the {count} sentences are in a writing system that this model cannot read: their scores are unreliable.",
    },
    errors: {
      empty: "Nothing was entered: fill in every field.",
      noMask: "There is no [MASK]: write one where a word is missing.",
      tooLong: "The text has {tokens} tokens and this model reads {limit}: shorten it.",
      noRoom: "Beside the long text there are {tokens} tokens and this model reads {limit}: shorten the question or the shorter text.",
      noFile: "The file {file} is missing on the server: write the page again with bothways page.",
      noModels: "models.json is missing or damaged: write the page again with bothways page.",
      failed: "The model could not answer: {says}",
      old: "This browser lacks WebAssembly or DecompressionStream: use one of 2023 or newer.",
    },
  },
  zh: {
    skip: "跳到正文", about: "在浏览器里运行 BERT", tabs: "功能",
    footer: "所有计算都在浏览器本地完成，文本不会上传。",
    speed: "上次计算用时 {ms} 毫秒", model: "模型", examples: "试试示例",
    text: "文本", second: "第二段文本", question: "问题", context: "上下文（含答案的文本）", query: "句子", lines: "逐行比较",
    fillHint: "在缺词处写上 [MASK]；中文里一个 [MASK] 对应一个字。", blank: "插入 [MASK]", linesHint: "每行一个句子。",
    waiting: "结果将显示在这里。首次使用时会加载模型。",
    loading: "正在加载模型", computing: "正在计算……", keys: "Ctrl + Enter",
    more: "显示全部 {count} 项", fewer: "收起", threshold: "阈值 {value}", thresholds: "竖线表示阈值，概率达到阈值才输出该标签。", noLabel: "没有标签达到阈值。",
    noAnswer: "文中没有答案。", noTags: "未识别到实体。", others: "其他答案", best: "最佳",
    heads: "层与注意力头", layer: "层", head: "头", headName: "第 {layer} 层第 {head} 头",
    headsHint: "横向为层，纵向为注意力头，可用方向键移动。",
    tokensHint: "将鼠标移到词元上，查看它关注哪些词元。", weight: "{from} → {to}：{value}",
    mapName: "第 {layer} 层第 {head} 头的注意力权重：行为查询，列为被关注的词元。",
    models: {
      en: "英文，完形填空与文本向量", zh: "中文，完形填空与文本向量", "en-answer": "英文，抽取式问答", "en-emotion": "英文，27 种情绪及中性",
      "en-nli": "英文，自然语言推理", "en-pos": "英文，词性标注", "en-spam": "英文，垃圾短信识别",
      "en-ner": "英文，命名实体识别（人名、地名、机构名）", "en-sentiment": "英文，情感分析", "zh-answer": "中文，抽取式问答",
      "zh-ner": "中文，命名实体识别（人名、地名、机构名）", "zh-pos": "中文，分词与词性标注", "zh-sentiment": "中文，情感分析",
      sentence: "英文，句向量", "sentence-zh": "中英文，句向量",
    },
    tab: { fill: "完形填空", attention: "注意力", classify: "文本分类", tag: "序列标注", answer: "抽取式问答", similar: "句子相似度" },
    go: { fill: "填空", attention: "显示", classify: "分类", tag: "标注", answer: "提问", similar: "比较" },
    notes: {
      windows: "文本较长，已切分为 {windows} 个重叠窗口处理，没有截断。",
      cut: "文本过长，已截断为前 {limit} 个词元，其余 {tokens} 个未处理。",
      cutLines: "有 {lines} 个句子过长，已截断为前 {limit} 个词元。",
      unknown: "{share}% 的词元不在该模型的词表中，结果不可靠。",
      strange: "文本中有较多该模型无法读取的文字，结果不可靠。",
      strangeLines: "{count} 个句子中有 {lines} 个使用了该模型无法读取的文字，其分数不可靠。",
    },
    errors: {
      empty: "请填写所有输入框。",
      noMask: "文本中没有 [MASK]：请在缺词处写上 [MASK]。",
      tooLong: "文本有 {tokens} 个词元，超过模型的最大长度 {limit}，请缩短文本。",
      noRoom: "除长文本外还有 {tokens} 个词元，而模型的最大长度为 {limit}，请缩短问题或较短的那段文本。",
      noFile: "服务器上缺少文件 {file}，请用 bothways page 重新生成本页。",
      noModels: "models.json 缺失或已损坏，请用 bothways page 重新生成本页。",
      failed: "模型运行失败：{says}",
      old: "此浏览器不支持 WebAssembly 或 DecompressionStream，请使用 2023 年以后的版本。",
    },
  },
};

/** Examples by tab and by the language that a model reads; for some models, those of their own. */
export const EXAMPLES = {
  fill: {
    en: [
      { text: "He poured the hot [MASK] into a cup." },
      { text: "In winter the lake is covered with [MASK]." },
      { text: "He [MASK] the letter and put it in his [MASK]." },
    ],
    zh: [{ text: "今天天气很[MASK]，我们去公园散步吧。" }, { text: "北京是中国的[MASK]都。" }, { text: "我们坐[MASK][MASK]去上海。" }],
  },
  attention: {
    en: [{ text: "The animal didn't cross the street because it was too tired." }, { text: "The keys to the old cabinet are on the table." }],
    zh: [{ text: "小猫没有过马路，因为它太累了。" }, { text: "北京是中国的首都，也是一座古老的城市。" }],
  },
  classify: {
    en: [{ text: "This is the best film I have seen in years." }, { text: "The room was cold and nobody answered the phone." }],
    zh: [{ text: "这家酒店的服务非常好，下次还会来。" }, { text: "房间又小又吵，很失望。" }],
  },
  "en-emotion": {
    en: [
      { text: "Thank you so much, this really made my day!" },
      { text: "I can't believe they cancelled the show. I was looking forward to it." },
      { text: "Wait, how did you do that?" },
    ],
  },
  "en-spam": {
    en: [
      { text: "Congratulations! You have won a free holiday. Call 0800 123 456 now to claim your prize." },
      { text: "Are we still meeting for lunch at noon? I'll be a few minutes late." },
    ],
  },
  "en-nli": {
    en: [
      { text: "A man is playing a guitar on the street.", second: "A musician performs outdoors." },
      { text: "Two children are sleeping in a tent.", second: "The children are running." },
      { text: "A woman is reading in a café.", second: "The woman is waiting for a friend." },
    ],
  },
  tag: {
    en: [{ text: "Anna didn't fly to Berlin on Monday; she took the early train." }, { text: "The quick brown fox jumps over the lazy dog." }],
    zh: [{ text: "李明下周一从北京飞往上海参加会议。" }],
  },
  answer: {
    en: [
      {
        question: "When was the bridge opened?",
        text: "The Golden Gate Bridge connects San Francisco to Marin County. Construction began in January 1933 under the engineer Joseph Strauss, and the bridge was opened in May 1937. It was the longest suspension bridge in the world until 1964.",
      },
      {
        question: "What do plants release?",
        text: "In photosynthesis, plants take up carbon dioxide and water. With the energy of sunlight they make sugar, and they release oxygen into the air.",
      },
    ],
    zh: [{ question: "大桥是哪一年通车的？", text: "这座大桥由当地工程师设计，1933年动工，1937年5月通车，全长2737米。" }],
  },
  similar: {
    en: [
      {
        text: "How do I reset my password?",
        lines: "I forgot my password and cannot log in.\nThe parcel arrived two days late.\nHow can I change my password?\nWhere is the nearest train station?\nMy account is locked.\nWhat will the weather be like tomorrow?",
      },
    ],
    zh: [
      {
        text: "怎样修改密码？",
        lines: "我忘记了密码，登录不了。\n包裹晚到了两天。\n如何重新设置密码？\n最近的火车站在哪里？\n我的账号被锁定了。\n明天天气怎么样？",
      },
    ],
  },
};

/** A text with its values put in. */
export function put(text, values = {}) {
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}
